"""The entry point of the Spark image: what it runs for what Spark on Kubernetes asks for. tini stands in as an echo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[3] / "jobs" / "kubernetes" / "entrypoint"


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    echo = tmp_path / "tini"
    echo.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
    echo.chmod(0o755)

    def call(*arguments: str, **environment: str) -> list[str]:
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_HOME": "/spark", **environment}
        done = subprocess.run([ENTRYPOINT, *arguments], env=env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


def test_a_driver_of_sparks_own_submission(run) -> None:  # type: ignore[no-untyped-def]
    said = run("driver", "--class", "a b", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    assert said[:5] == ["-s", "--", "/spark/bin/spark-submit", "--deploy-mode", "client"]
    assert said[-4:] == ["--conf", "spark.driver.bindAddress=10.0.0.7", "--class", "a b"]


def test_a_driver_of_ours(run) -> None:  # type: ignore[no-untyped-def]
    said = run("driver-client", "--name", "orders", "local:///job.py")
    assert said[2:5] == ["/spark/bin/spark-submit", "--deploy-mode", "client"]
    assert said[-3:] == ["--name", "orders", "local:///job.py"]


@pytest.mark.parametrize("mode", ["driver", "driver-client"])
def test_every_driver_serves_metrics(run, mode: str) -> None:  # type: ignore[no-untyped-def]
    said = run(mode, "local:///job.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    sink = "spark.metrics.conf.*.sink.prometheusServlet"
    assert f"{sink}.class=org.apache.spark.metrics.sink.PrometheusServlet" in said
    assert f"{sink}.path=/metrics/prometheus" in said
    assert "spark.metrics.namespace=${spark.app.name}" in said


def test_an_executor_gets_its_options_whole_and_in_order(run) -> None:  # type: ignore[no-untyped-def]
    options = {f"SPARK_JAVA_OPT_{n}": f"-Doption.{n}=some words" for n in range(12)}
    said = run(
        "executor",
        SPARK_EXECUTOR_MEMORY="512m",
        SPARK_DRIVER_URL="spark://driver",
        SPARK_EXECUTOR_ID="3",
        SPARK_EXECUTOR_CORES="1",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="10.0.0.8",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="orders-exec-3",
        **options,
    )
    assert said[2:15] == ["java", *(options[f"SPARK_JAVA_OPT_{n}"] for n in range(12))]
    assert said[15:19] == ["-Xms512m", "-Xmx512m", "-cp", ":/spark/jars/*"]
    assert said[said.index("--podName") + 1] == "orders-exec-3"


def test_anything_else_is_run_as_it_is(run) -> None:  # type: ignore[no-untyped-def]
    assert run("echo", "hello there") == ["hello there"]
