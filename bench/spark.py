"""Our Spark source against Spark's own Kafka source: the same topic of the same broker, read in turn in one session.

    python bench/spark.py                    # 1 KiB and 100 B, key and value as binary, local[2]
    python bench/spark.py --sizes 100 --megabytes 200 --rounds 5
    python bench/spark.py --vary             # values of half to one and a half times that size

Each round reads the whole topic once through either source and counts the bytes of keys and values, so every row is
made and looked at. What counts is the ratio of the medians in one run: this machine's speed is in both. Needs Java 17
(and Maven, once, to fetch Spark's Kafka jars).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka import Producer
from tests.integration.cluster import Cluster
from tests.integration.java import spark_kafka_jars

from headrace.client.sync import Admin

PARTITIONS = 2


def session(memory: str) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from headrace.spark.source import HeadraceDataSource

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", ",".join(spark_kafka_jars()))
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HeadraceDataSource)
    return spark


def fill(bootstrap: str, topic: str, sizes: list[int]) -> None:
    """Records with eight bytes of key and values of these sizes, which do not repeat."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 262_144})
    noise = random.Random(7).randbytes(1 << 20)
    for n, size in enumerate(sizes):
        at = n * 131 % (len(noise) - size)
        while True:
            try:
                producer.produce(topic, noise[at : at + size], b"%08d" % n, partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def read(spark: Any, source: str, topic: str, cluster: Cluster, columns: str) -> tuple[float, int, int]:
    """Seconds, rows, and bytes of keys and values."""
    if source == "headrace":
        reader = spark.read.format("headrace").option("headrace.bootstrap.servers", cluster.description["grpc"])
        reader = reader.option("columns", columns) if columns else reader
    else:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select("key", "value")
    began = time.perf_counter()
    found = rows.selectExpr("count(*)", "sum(length(key) + length(value))").collect()[0]
    return time.perf_counter() - began, found[0], found[1]


def compare(spark: Any, cluster: Cluster, size: int, given: argparse.Namespace) -> None:
    topic, count = f"bench-{size}", given.megabytes * 1_000_000 // size
    chance = random.Random(11)
    sizes = [chance.randint(size // 2, size * 3 // 2) if given.vary else size for _ in range(count)]
    with Admin(bootstrap_servers=cluster.description["grpc"]) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    fill(cluster.bootstrap, topic, sizes)
    cases = {"kafka": ("kafka", ""), "headrace": ("headrace", "key,value"), "headrace, all columns": ("headrace", "")}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(given.warm + given.rounds):
        for name, (source, columns) in cases.items():
            seconds, rows, length = read(spark, source, topic, cluster, columns)
            assert (rows, length) == (count, sum(sizes) + count * 8), f"{name} read {rows} rows and {length} bytes"
            if number >= given.warm:
                times[name].append(seconds)
    rate = {name: count / statistics.median(each) for name, each in times.items()}
    for name in cases:
        spread = " ".join(f"{seconds:.2f}" for seconds in times[name])
        ratio = rate[name] / rate["kafka"]
        print(f"{size:5d} B  {name:24s} {rate[name]:10,.0f} rows/s   {ratio:.2f} x   ({spread} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the Spark sources; see the top of this file.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 100], help="bytes of a value")
    parser.add_argument("--megabytes", type=int, default=200, help="bytes of values in a topic")
    parser.add_argument("--vary", action="store_true", help="values of half to one and a half times the size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="rounds before those that count")
    parser.add_argument("--memory", default="1g", help="heap of the driver, which runs the tasks")
    given = parser.parse_args()
    # What was started is stopped, also when this is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "data").start()
        try:
            spark = session(given.memory)
            for size in given.sizes:
                compare(spark, cluster, size, given)
            spark.stop()
        finally:
            cluster.dispose()


if __name__ == "__main__":
    main()
