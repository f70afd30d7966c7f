"""A user runs Spark jobs beside a cluster: they end exact though pods are killed, and a stream survives a drain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.client.fill import BEGIN, KEYS
from tests.e2e.headrace import (
    ROOT,
    SPARK_NAMESPACE,
    VERSION,
    Release,
    client_pod,
    container_id,
    reaper_pod,
    spark_values,
    tool_pod,
    topic,
)
from tests.e2e.kubectl import CACHE_BIN, KubectlError, Namespace, Object, run, wait_for

from headrace.cli.spark_status import state

RECORDS = 1_000_000
MORE = 1_000
BATCH = 100_000
IMAGE = f"headrace/spark:{VERSION}"
BIN = Path(sys.executable).parent
IN_IMAGE = "/opt/headrace"
CHECKPOINTS = "/var/lib/spark/checkpoints"
CHECK = ROOT / "tests" / "e2e" / "spark_check.py"
CONSUME = ("consume", "--from", "beginning", "--exit")
# They are over before the optimising compiler pays for itself.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL_PODS = {
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
}


class Spark:
    """`headrace spark` on the user's machine, and the pods of its jobs."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.namespace = release.namespace

    def command(self, *words: str, seconds: float = 300.0) -> str:
        environment = {**os.environ, "PATH": f"{CACHE_BIN}{os.pathsep}{os.environ['PATH']}"}
        line = [str(BIN / "headrace"), "spark", words[0], "-n", self.namespace.name, *words[1:]]
        done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, env=environment)
        if done.returncode:
            raise KubectlError(f"{' '.join(line)} ended with {done.returncode}: {done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def submit(self, job: str, *arguments: str, options: tuple[str, ...] = (), seconds: float = 300.0) -> str:
        """On a small machine, with what executors write on the claim `lake`."""
        where = ("--cluster", self.release.name, "--image", IMAGE, "--volume", "lake:/lake")
        small = [word for name, value in SMALL_PODS.items() for word in ("--conf", f"{name}={value}")]
        return self.command("submit", job, *where, *small, *options, "--", *arguments, seconds=seconds)

    def pods(self, job: str, role: str) -> list[Object]:
        """Those that run, the newest last."""
        found = self.namespace.pods(f"headrace.dev/spark-job={job},spark-role={role}")
        live = [p for p in found if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]]
        return sorted(live, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def state(self, job: str) -> str:
        return state(self.namespace.get("job", job))

    def log(self, pod: Object) -> str:
        return self.namespace.kubectl("logs", pod["metadata"]["name"])

    def kill(self, pod: Object) -> None:
        """kill -9 of everything in the pod."""
        self.namespace.exec("reaper", "python3", "reaper.py", container_id(pod))

    def wait_batches(self, job: str, wanted: int) -> Object:
        """Waits until the driver that runs now has finished so many micro-batches; returns its pod."""

        def far_enough() -> Object | None:
            assert self.state(job) != "Failed", self.command("logs", job)
            driver = self.pods(job, "driver")[-1]
            return driver if len(rows_of(self.log(driver))) >= wanted else None

        return wait_for(f"{wanted} micro-batches of {job}", far_enough, 400, pause=1)

    def wait_succeeded(self, job: str) -> str:
        """Waits for the end; returns the log of the last driver."""

        def succeeded() -> bool:
            state = self.state(job)
            assert state != "Failed", self.command("logs", job)
            return state == "Succeeded"

        wait_for(f"{job} has succeeded", succeeded, 600, pause=2)
        return self.command("logs", job)


@pytest.fixture(scope="module")
def spark() -> Spark:
    """A small release of its own, a claim for what jobs write, and the pods of the client. Nothing is left from before:
    the same records in the topics again would be too many."""
    run("kubectl", "delete", "namespace", SPARK_NAMESPACE, "--ignore-not-found", "--timeout=240s", seconds=260)
    release = Release(Namespace(SPARK_NAMESPACE), "lakes")
    release.install(spark_values())
    for file in ("rbac.yaml", "submitter.yaml"):
        release.namespace.kubectl("apply", "-f", str(ROOT / "jobs" / "kubernetes" / file))
    release.namespace.apply(
        tool_pod(), client_pod(), reaper_pod(), claim("lake"), claim("headrace-checkpoints"), reader()
    )
    release.wait_ready()
    return Spark(release)


def claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def reader() -> Object:
    """A pod where a user looks at what jobs have written, and which may start jobs."""
    spec = {
        "serviceAccountName": "headrace-spark-submit",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "containers": [
            {
                "name": "reader",
                "image": IMAGE,
                "args": ["sleep", "infinity"],
                "env": [{"name": "PYSPARK_SUBMIT_ARGS", "value": f"--driver-java-options '{JAVA}' pyspark-shell"}],
                "volumeMounts": [{"name": "lake", "mountPath": "/lake"}],
            }
        ],
        "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader"}, "spec": spec}


@pytest.fixture(scope="module")
def clicks(spark: Spark) -> Object:
    """The million records, and what was said when they were sent."""
    # Their times are long past: a topic that keeps records for a week would drop them at once.
    kept = {"partitions": 4, "replicas": 1, "config": {"retention.ms": "-1"}, "deletionPolicy": "Delete"}
    for name in ("clicks", "counts"):
        spark.namespace.apply(topic(name, spark.release.name, **kept))
        spark.namespace.wait_condition("hrt", name, "Ready", seconds=240)
    wait_for("the client", lambda: spark.namespace.exec("client", "true") == "", 240)
    return fill(spark, RECORDS)


def fill(spark: Spark, count: int) -> Object:
    words = ("python3", "fill.py", spark.release.bootstrap, "clicks", str(count))
    sent: Object = json.loads(spark.namespace.exec("client", *words, seconds=400))
    assert (sent["acked"], sent["failed"]) == (count, [])
    return sent


def kill_on_the_way(spark: Spark, job: str) -> Object:
    """Kills an executor and then the driver, both in the middle; returns the driver that was killed."""
    spark.wait_batches(job, 1)
    spark.kill(spark.pods(job, "executor")[0])
    driver = spark.wait_batches(job, 2)
    spark.kill(driver)
    told = sum(rows_of(spark.log(driver)))
    assert 0 < told < RECORDS, f"it was not killed in the middle: the first driver read {told}"
    return driver


def rows_of(log: str) -> list[int]:
    """Rows of each micro-batch that a driver told of."""
    return [int(rows) for rows in re.findall(r"micro-batch \d+: (\d+) rows", log)]


def written(spark: Spark, path: str) -> Object:
    """What Spark itself finds in Parquet files."""
    words = ("exec", "-i", "reader", "--", "python3", "-", path)
    found: Object = json.loads(spark.namespace.kubectl(*words, text=CHECK.read_text(), seconds=400).splitlines()[-1])
    return found


def test_windows_are_exact_though_an_executor_and_the_driver_are_killed(spark: Spark, clicks: Object) -> None:
    # State is written by executors, so this checkpoint is where they reach it.
    line = ("--topic", "clicks", "--output-topic", "counts", "--window", "1 minute", "--late", "10 seconds")
    where = ("--max-offsets", str(BATCH), "--checkpoint", "/lake/_checkpoints/counts")
    spark.submit("windowed_counts", *line, *where, options=("--no-follow",))
    kill_on_the_way(spark, "windowed-counts")
    spark.wait_succeeded("windowed-counts")
    windows = [json.loads(each) for each in spark.release.headrace(*CONSUME, "counts").splitlines()]
    assert len({(each["key"], each["start"]) for each in windows}) == len(windows), "windows were written twice"
    assert {(each["key"], each["start"]): each["count"] for each in windows} == expected_windows()


def expected_windows() -> dict[tuple[str, str], int]:
    """Of every record but the last, whose window is still open."""
    counted = Counter((n % KEYS, n // 60_000) for n in range(RECORDS - 1))
    return {
        (
            f"key-{key}",
            datetime.fromtimestamp(BEGIN / 1000 + 60 * minute, UTC).strftime("%Y-%m-%dT%H:%M:00.000Z"),
        ): count
        for (key, minute), count in counted.items()
    }


def test_spark_submit_in_cluster_mode(spark: Spark, clicks: Object) -> None:
    """As jobs/README.md says it, with Spark's own tool, the files of jobs/kubernetes and no more than their rights."""
    conf = {
        **SMALL_PODS,
        "spark.kubernetes.namespace": SPARK_NAMESPACE,
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "headrace-spark",
        "spark.kubernetes.driver.podTemplateFile": f"{IN_IMAGE}/spark/driver-pod.yaml",
        "spark.kubernetes.executor.podTemplateFile": f"{IN_IMAGE}/spark/executor-pod.yaml",
        "spark.kubernetes.driver.pod.name": "plain-driver",
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.driver.memory": "512m",
        "spark.driver.memoryOverhead": "640m",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "640m",
        "spark.executor.instances": "1",
        "spark.log.level": "WARN",
        **{
            f"spark.kubernetes.{who}.volumes.persistentVolumeClaim.lake.{key}": value
            for who in ("driver", "executor")
            for key, value in (("options.claimName", "lake"), ("mount.path", "/lake"))
        },
    }
    line = ["spark-submit", "--master", "k8s://https://kubernetes.default.svc", "--deploy-mode", "cluster"]
    line += ["--name", "plain", *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
    line += [
        f"local://{IN_IMAGE}/jobs/topic_to_parquet.py",
        "--bootstrap-servers",
        f"{spark.release.name}-metadata:9094",
    ]
    line += ["--topic", "clicks", "--output", "/lake/plain", "--checkpoint", f"{CHECKPOINTS}/plain"]
    spark.namespace.exec("reader", *line, seconds=600)
    driver = spark.namespace.get("pod", "plain-driver")
    assert driver["status"]["phase"] == "Succeeded", spark.log(driver)
    assert written(spark, "/lake/plain") == {"rows": RECORDS, "places": RECORDS, "checksum": clicks["checksum"]}


@pytest.fixture
def stream(spark: Spark, clicks: Object) -> Iterator[str]:
    """A job of the user's own that runs on and on, from the million records to Parquet."""
    line = ("--topic", "clicks", "--output", "/lake/stream", "--checkpoint", f"{CHECKPOINTS}/stream")
    how = ("--continuous", "--trigger", "1 second", "--group", "streamers", "--max-offsets", str(BATCH))
    job = str(ROOT / "jobs" / "topic_to_parquet.py")
    spark.submit(job, *line, *how, options=("--no-follow", "--name", "stream"))
    yield "stream"
    if spark.namespace.exists("job", "stream"):
        spark.command("stop", "stream", "--forget")


def test_a_stream_is_exact_through_kills_and_a_drain_is_scraped_and_stops(
    spark: Spark, clicks: Object, stream: str
) -> None:
    killed = kill_on_the_way(spark, stream)
    wait_for("the group has no lag", lambda: lag(spark, "streamers") == 0, 400, pause=2)
    drained = spark.pods(stream, "driver")[-1]
    assert drained["metadata"]["uid"] != killed["metadata"]["uid"]
    assert_scraped(spark.namespace, drained)

    drain(spark.namespace, stream)
    more = fill(spark, MORE)
    last = spark.wait_batches(stream, 1)
    assert last["metadata"]["uid"] != drained["metadata"]["uid"]
    wait_for("the last driver has read what came since", lambda: sum(rows_of(spark.log(last))) == MORE, 240)
    (listed,) = [row for row in json.loads(spark.command("list", "-o", "json")) if row["name"] == stream]
    assert (listed["state"], listed["cluster"]) == ("Running", spark.release.name)
    assert listed["failed_starts"] == 1, "the kill counts, the drain does not"
    assert sum(rows_of(spark.command("logs", stream))) == MORE
    with pytest.raises(KubectlError, match="job stream runs already: `headrace spark stop stream"):
        spark.submit("topic_to_parquet", options=("--name", "stream"))

    spark.command("stop", stream)
    for role in ("driver", "executor"):
        wait_for(f"no {role} runs", lambda role=role: not spark.pods(stream, role), 240)
    assert spark.namespace.exists("pvc", f"{stream}-checkpoints"), "the checkpoint stays"
    with pytest.raises(KubectlError, match="no Spark job stream in namespace"):
        spark.command("stop", stream)
    sent = RECORDS + MORE
    expected = {"rows": sent, "places": sent, "checksum": clicks["checksum"] + more["checksum"]}
    assert written(spark, "/lake/stream") == expected


def lag(spark: Spark, group: str) -> int:
    """Over all partitions; KeyError while something is not committed yet."""
    partitions = json.loads(spark.release.headrace("groups", "describe", group, "-o", "json"))["partitions"]
    if not partitions or any(each["lag"] is None for each in partitions):
        raise KeyError(f"{group} has committed nothing yet: {partitions}")
    return sum(each["lag"] for each in partitions)


def drain(namespace: Namespace, job: str) -> None:
    """Empties the node of a job's pods, as its administrator does, and gives it back."""
    (node,) = {pod["spec"]["nodeName"] for pod in namespace.pods(f"headrace.dev/spark-job={job}")}
    chosen = f"--pod-selector=headrace.dev/spark-job={job},spark-role"
    try:
        words = ("--delete-emptydir-data", "--ignore-daemonsets", "--timeout=180s")
        namespace.kubectl("drain", node, chosen, *words, seconds=200)
    finally:
        namespace.kubectl("uncordon", node)


def assert_scraped(namespace: Namespace, driver: Object) -> None:
    """Prometheus finds the driver by its annotations, and its executors in the driver's second page."""
    notes = driver["metadata"]["annotations"]
    assert notes["prometheus.io/scrape"] == "true"
    name, port = driver["metadata"]["name"], int(notes["prometheus.io/port"])
    text = namespace.proxied(name, port, notes["prometheus.io/path"])
    names = {family.name for family in text_string_to_metric_families(text)}
    assert any("spark_streaming" in each and "inputRate" in each for each in names), sorted(names)

    def executors() -> set[str]:
        page = text_string_to_metric_families(namespace.proxied(name, port, "/metrics/executors/prometheus"))
        # Spark's own version is on that page, too, and belongs to no executor.
        labels = [sample.labels for family in page for sample in family.samples]
        return {each["executor_id"] for each in labels if "executor_id" in each}

    # One of them may be late: a stream goes on with fewer.
    wait_for("the driver and both executors are on the page", lambda: len(executors()) >= 3, 240, pause=2)


def test_mistakes_are_told_before_anything_is_made(spark: Spark) -> None:
    with pytest.raises(KubectlError, match="no Cluster demo in namespace headrace-e2e-spark"):
        spark.command("submit", "replay")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "not-ours"},
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "none"}]}},
        },
    }
    spark.namespace.apply(job)
    for words in (("stop", "not-ours"), ("logs", "not-ours")):
        with pytest.raises(KubectlError, match="is a Job that `headrace spark` did not make"):
            spark.command(*words)
    assert spark.namespace.exists("job", "not-ours")
    spark.namespace.delete("job", "not-ours")
