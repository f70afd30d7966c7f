"""`headrace spark`: Spark jobs in a Kubernetes cluster, with kubectl as the way to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Run Spark jobs in Kubernetes beside a cluster of Headrace.")

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Kubernetes namespace.")]
Name = Annotated[str, typer.Argument(help="The job's name, as `list` shows it.")]
_IMAGE = "headrace/spark:latest"


@app.command(context_settings={"allow_interspersed_args": False})
def submit(
    job: Annotated[str, typer.Argument(help="One of the image's jobs (topic_to_parquet) or a Python file of yours.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the job takes, after --.")] = None,
    cluster: Annotated[str, typer.Option(help="The Cluster to read and write.")] = "demo",
    namespace: Namespace = "default",
    name: Annotated[str | None, typer.Option(help="Name of the job (that of the file).")] = None,
    image: Annotated[str, typer.Option(help="Image with Spark and Headrace (the Dockerfile's target spark).")] = _IMAGE,
    executors: Annotated[int, typer.Option(help="How many executors.")] = 2,
    cores: Annotated[int, typer.Option(help="Tasks at a time on an executor.")] = 1,
    driver_memory: Annotated[str, typer.Option(help="Heap of the driver.")] = "512m",
    executor_memory: Annotated[str, typer.Option(help="Heap of an executor.")] = "512m",
    checkpoint_size: Annotated[str, typer.Option(help="Size of the volume for checkpoints.")] = "1Gi",
    storage_class: Annotated[str | None, typer.Option(help="Storage class of that volume.")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark.", metavar="KEY=VALUE")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print the job's log until it ends.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests, change nothing.")] = False,
) -> None:
    """Start a job. Its checkpoint is on a volume of its own: submitted again under its name, it goes on.

    Examples:

      headrace spark submit topic_to_parquet --cluster demo -- --topic orders --output /var/lib/spark/checkpoints/out
      --checkpoint /var/lib/spark/checkpoints/orders

      headrace spark submit jobs/mine.py --cluster demo --name mine --executors 4 -- --topic orders
    """
    from headrace.cli import session
    from headrace.cli.spark_manifests import InvalidSubmission, Submission, job_name, manifests

    try:
        wanted = Submission(
            job=job if job.endswith(".py") else f"{job}.py",
            name=name or job_name(job),
            namespace=namespace,
            cluster=cluster,
            image=image,
            arguments=tuple(arguments or ()),
            script=_script(job),
            executors=executors,
            cores=cores,
            driver_memory=driver_memory,
            executor_memory=executor_memory,
            checkpoint_size=checkpoint_size,
            storage_class=storage_class,
            conf=_settings(conf or []),
        )
        made = manifests(wanted)
    except InvalidSubmission as error:
        session.fail(str(error), session.USAGE)
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": made}, indent=2)
    if dry_run:
        print(listing)
        return
    _kubectl(["apply", "-f", "-"], given=listing)
    if follow:
        _follow(wanted.name, namespace)


@app.command("list")
def list_jobs(namespace: Namespace = "default") -> None:
    """List the jobs.

    Example: headrace spark list -n data
    """
    from headrace.cli.options import Format
    from headrace.cli.output import show
    from headrace.cli.spark_manifests import LABEL, rows

    found: dict[str, Any] = json.loads(
        _kubectl(["get", "jobs", "-n", namespace, "-l", LABEL, "-o", "json"], quiet=True)
    )
    show(rows(found["items"]), Format.TABLE, empty=f"no Spark jobs in namespace {namespace}")


@app.command()
def logs(
    name: Name,
    namespace: Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print the log of a job's driver.

    Example: headrace spark logs topic-to-parquet -f
    """
    if follow:
        _follow(name, namespace)
    else:
        _kubectl(["logs", "-n", namespace, f"job/{name}"])


@app.command()
def stop(
    name: Name,
    namespace: Namespace = "default",
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the checkpoint too: it starts anew next time.")
    ] = False,
) -> None:
    """Stop a job: driver and executors end, the checkpoint stays.

    Example: headrace spark stop topic-to-parquet
    """
    from headrace.cli.spark_manifests import LABEL

    _kubectl(["delete", "job", name, "-n", namespace, "--cascade=foreground"])
    kinds = "service,configmap,persistentvolumeclaim" if forget else "service,configmap"
    _kubectl(["delete", kinds, "-n", namespace, "-l", f"{LABEL}={name}"])


def _script(job: str) -> str | None:
    """The text of a file of the user's; None when the job is one that the image brings."""
    from headrace.cli import session

    if not job.endswith(".py"):
        return None
    try:
        return Path(job).read_text()
    except OSError as error:
        session.fail(f"{job}: {error.strerror}", session.USAGE)


def _settings(given: list[str]) -> dict[str, str]:
    from headrace.cli.spark_manifests import InvalidSubmission

    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidSubmission(f"--conf {each!r} is not spark.KEY=VALUE")
        found[name] = value
    return found


def _follow(name: str, namespace: str) -> None:
    selector = f"headrace.dev/spark-job={name},spark-role=driver"
    _kubectl(["wait", "pod", "-n", namespace, "-l", selector, "--for=condition=Ready", "--timeout=300s"], quiet=True)
    _kubectl(["logs", "-n", namespace, "-f", f"job/{name}"])


def _kubectl(line: list[str], given: str | None = None, quiet: bool = False) -> str:
    """Runs kubectl; its output is shown unless `quiet`, which returns it. When it fails, so does the command."""
    from headrace.cli import session

    program = shutil.which("kubectl")
    if program is None:
        session.fail(
            "kubectl is not installed, and it is the way to your Kubernetes cluster: install it", session.USAGE
        )
    try:
        done = subprocess.run([program, *line], input=given, text=True, stdout=subprocess.PIPE if quiet else None)
    except KeyboardInterrupt:
        session.end_quietly()
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""
