"""`headrace spark`: Spark jobs in a Kubernetes cluster, with kubectl as the way to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import Format, Output
from headrace.cli.spark_manifests import IMAGE

app = typer.Typer(no_args_is_help=True, help="Run Spark jobs in Kubernetes beside a cluster of Headrace.")

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Kubernetes namespace.")]
Name = Annotated[str, typer.Argument(help="The job's name, as `list` shows it.")]
Timeout = Annotated[float, typer.Option(help="Seconds that a driver may take to start when its log is followed.")]
_START_SECONDS = 300.0
_LOOK_SECONDS = 1.0


@app.command()
def submit(
    job: Annotated[str, typer.Argument(help="One of the image's jobs (topic_to_parquet) or a Python file of yours.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the job takes, after --.")] = None,
    cluster: Annotated[str, typer.Option(help="The Cluster to read and write.")] = "demo",
    namespace: Namespace = "default",
    name: Annotated[str | None, typer.Option(help="Name of the job (that of the file).")] = None,
    image: Annotated[str, typer.Option(help="Image with Spark and Headrace (the Dockerfile's target spark).")] = IMAGE,
    executors: Annotated[int, typer.Option(help="How many executors.")] = 2,
    cores: Annotated[int, typer.Option(help="Tasks at a time on an executor.")] = 1,
    driver_memory: Annotated[str, typer.Option(help="Heap of the driver.")] = "512m",
    executor_memory: Annotated[str, typer.Option(help="Heap of an executor.")] = "512m",
    checkpoint_size: Annotated[str, typer.Option(help="Size of the volume for checkpoints.")] = "1Gi",
    storage_class: Annotated[str | None, typer.Option(help="Storage class of that volume.")] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(help="A claim of yours to mount in driver and executors.", metavar="CLAIM:PATH"),
    ] = None,
    retries: Annotated[
        int, typer.Option(help="How many drivers may fail before the job does; drains do not count.")
    ] = 6,
    service_account: Annotated[
        str | None, typer.Option(help="Service account of the driver. [default: headrace-spark, made if missing]")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark.", metavar="KEY=VALUE")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print the job's log until it ends.")] = True,
    timeout: Timeout = _START_SECONDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests, change nothing.")] = False,
) -> None:
    """Start a job. Its checkpoint is on a volume of its own: submitted again under its name, it goes on.

    Examples:

      headrace spark submit topic_to_parquet --cluster demo -- --topic orders --output s3a://lake/orders
      --checkpoint /var/lib/spark/checkpoints/orders

      headrace spark submit jobs/mine.py --cluster demo --name mine --executors 4 --volume lake:/lake -- --topic orders
    """
    from headrace.cli import session
    from headrace.cli.spark_manifests import InvalidSubmission, Submission, job_name, manifests, names_servers

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
            volumes=_volumes(volume or []),
            retries=retries,
            service_account=service_account,
            conf=_settings(conf or []),
        )
        made = manifests(wanted)
    except InvalidSubmission as error:
        session.fail(str(error), session.USAGE)
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": made}, indent=2)
    if dry_run:
        print(listing)
        return
    if not names_servers(wanted.arguments):
        _check_cluster(cluster, namespace)
    _make_room(wanted.name, namespace)
    _kubectl(["apply", "-f", "-"], given=listing)
    if follow:
        _follow(wanted.name, namespace, timeout)


@app.command("list")
def list_jobs(namespace: Namespace = "default", output: Output = Format.TABLE) -> None:
    """List the jobs.

    Example: headrace spark list -n data
    """
    from headrace.cli.output import show
    from headrace.cli.spark_manifests import LABEL
    from headrace.cli.spark_status import rows

    found = _objects(["get", "jobs", "-n", namespace, "-l", LABEL])
    show(rows(found), output, empty=f"no Spark jobs in namespace {namespace}")


@app.command()
def logs(
    name: Name,
    namespace: Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    timeout: Timeout = _START_SECONDS,
) -> None:
    """Print the log of a job's driver.

    Example: headrace spark logs topic-to-parquet -f
    """
    from headrace.cli import session
    from headrace.cli.spark_status import has_started, newest, waiting_for

    _existing(name, namespace)
    if follow:
        _follow(name, namespace, timeout)
        return
    driver = newest(_drivers(name, namespace))
    if driver is None or not has_started(driver):
        session.fail(f"{waiting_for(driver)}: there is no log yet")
    _kubectl(["logs", "-n", namespace, driver["metadata"]["name"]])


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

    _existing(name, namespace)
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


def _volumes(given: list[str]) -> dict[str, str]:
    from headrace.cli.spark_manifests import InvalidSubmission

    found = {}
    for each in given:
        claim, colon, path = each.partition(":")
        if not colon or not claim or not path:
            raise InvalidSubmission(f"--volume {each!r} is not CLAIM:PATH")
        if path in found:
            raise InvalidSubmission(f"two volumes cannot be mounted at {path}")
        found[path] = claim
    return found


def _check_cluster(cluster: str, namespace: str) -> None:
    """A job beside no Cluster would find that out after a minute. Who may not list Clusters is believed."""
    from headrace.cli import session

    text = _kubectl(["get", "clusters.headrace.dev", "-n", namespace, "-o", "json"], quiet=True, may_fail=True)
    names = [each["metadata"]["name"] for each in json.loads(text)["items"]] if text else [cluster]
    if cluster not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        session.fail(
            f"no Cluster {cluster} in namespace {namespace} ({there}): give --cluster and -n, or --bootstrap-servers "
            "among the job's own arguments",
            session.NOT_FOUND,
        )


def _find(name: str, namespace: str) -> dict[str, Any] | None:
    """The Job of this name. One that is none of ours is an error: it is not to be replaced or stopped."""
    from headrace.cli import session
    from headrace.cli.spark_manifests import LABEL

    text = _kubectl(["get", "job", name, "-n", namespace, "--ignore-not-found", "-o", "json"], quiet=True)
    if not text.strip():
        return None
    found: dict[str, Any] = json.loads(text)
    if LABEL not in found["metadata"].get("labels", {}):
        session.fail(f"{name} in namespace {namespace} is a Job that `headrace spark` did not make: use another name")
    return found


def _existing(name: str, namespace: str) -> dict[str, Any]:
    from headrace.cli import session

    found = _find(name, namespace)
    if found is None:
        session.fail(
            f"no Spark job {name} in namespace {namespace}: `headrace spark list` shows what there is",
            session.NOT_FOUND,
        )
    return found


def _make_room(name: str, namespace: str) -> None:
    """Removes the Job of an earlier run that has ended: Kubernetes runs a Job once. Its checkpoint stays."""
    from headrace.cli import session
    from headrace.cli.spark_status import ENDED, state

    found = _find(name, namespace)
    if found is None:
        return
    if state(found) not in ENDED:
        session.fail(f"job {name} runs already: `headrace spark stop {name} -n {namespace}`, or give another --name")
    _kubectl(["delete", "job", name, "-n", namespace, "--cascade=foreground"], quiet=True)


def _drivers(name: str, namespace: str) -> list[dict[str, Any]]:
    from headrace.cli.spark_manifests import driver_labels

    selector = ",".join(f"{label}={value}" for label, value in driver_labels(name).items())
    return _objects(["get", "pods", "-n", namespace, "-l", selector])


def _follow(name: str, namespace: str, start_seconds: float) -> None:
    """The logs of a job's drivers, one after the other, until it has ended. When it failed, so does the command."""
    from headrace.cli import session

    try:
        _follow_drivers(name, namespace, start_seconds)
    except KeyboardInterrupt:
        session.fail(f"job {name} goes on: `headrace spark logs {name} -n {namespace} -f`", session.INTERRUPTED)


def _follow_drivers(name: str, namespace: str, start_seconds: float) -> None:
    from headrace.cli import session
    from headrace.cli import spark_status as status

    followed, since, said = "", "", ""
    deadline = time.monotonic() + start_seconds
    while True:
        found = _existing(name, namespace)
        driver = status.newest(_drivers(name, namespace))
        state = status.state(found)
        uid = driver["metadata"]["uid"] if driver is not None else ""
        if driver is not None and status.has_started(driver) and (uid != followed or not status.has_ended(driver)):
            # A connection may break while the driver runs: what was printed is not printed again.
            again = ["--since-time", since] if uid == followed else []
            _kubectl(["logs", "-n", namespace, "-f", *again, driver["metadata"]["name"]], may_fail=True)
            followed, since = uid, datetime.now(UTC).isoformat(timespec="seconds")
            deadline = time.monotonic() + start_seconds
        elif state == status.SUCCEEDED:
            return
        elif state == status.FAILED:
            session.fail(f"job {name} failed: {status.why_it_failed(found)}")
        else:
            waits = status.waiting_for(driver)
            if waits != said:
                print(f"headrace: {waits}", file=sys.stderr)
                said = waits
            if time.monotonic() > deadline:
                session.fail(f"no driver of {name} runs after {start_seconds:.0f} s, and the job was left as it is")
        time.sleep(_LOOK_SECONDS)


def _objects(line: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_kubectl([*line, "-o", "json"], quiet=True))["items"]
    return found


def _kubectl(line: list[str], given: str | None = None, quiet: bool = False, may_fail: bool = False) -> str:
    """Runs kubectl; its output is shown unless `quiet`, which returns it. When it fails, so does the command."""
    from headrace.cli import session

    program = shutil.which("kubectl")
    if program is None:
        session.fail(
            "kubectl is not installed, and it is the way to your Kubernetes cluster: install it", session.USAGE
        )
    done = subprocess.run(
        [program, *line],
        input=given,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.DEVNULL if quiet and may_fail else None,
    )
    if done.returncode and not may_fail:
        session.fail(f"kubectl {line[0]} failed; the cluster is the one of `kubectl config current-context`")
    return done.stdout or ""
