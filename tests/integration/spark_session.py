"""One Spark session on a local master for the tests of a file, with Spark's own Kafka source beside ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.java import require_java, require_spark_kafka

SERVICES = Path(__file__).resolve().parents[2] / "services"
IMPORTED = (
    *("pyspark.sql.streaming.python_streaming_source_runner", "pyspark.sql.worker.create_data_source"),
    *("pandas", "pyarrow", "headrace.spark.source", "headrace.spark.sink"),
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """local[2] with small heaps; Python workers find the source as they do where it is installed."""
    require_java()
    jars = require_spark_kafka()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # An editable install is not listed among the modules that Spark looks through; a folder is.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SERVICES), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark gives a Python worker ten seconds to start, so what it imports is compiled before.
        subprocess.run([sys.executable, "-c", f"import {', '.join(IMPORTED)}"], check=True)
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.jars", ",".join(jars))
            .config("spark.driver.memory", "600m")
            .config("spark.driver.bindAddress", "127.0.0.1")
            # Tests are over before the optimising compiler pays for itself.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
