"""What the jobs of jobs/ share: the session, the options that all of them take, and how they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.source import HeadraceDataSource


def parser(name: str, does: str, examples: str) -> argparse.ArgumentParser:
    """A parser with the options that every job takes."""
    made = argparse.ArgumentParser(
        prog=name, description=does, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--bootstrap-servers", required=True, metavar="HOST:PORT", help="metadata servers of the cluster (gRPC)"
    )
    return made


def add_stream_options(made: argparse.ArgumentParser) -> None:
    """The options of jobs that can run on and on."""
    made.add_argument("--checkpoint", required=True, metavar="URI", help="where the query keeps how far it has come")
    made.add_argument(
        "--continuous", action="store_true", help="run until stopped; else read what is there now and end"
    )
    made.add_argument("--trigger", default="10 seconds", metavar="TIME", help="time between micro-batches (10 seconds)")
    made.add_argument("--max-offsets", type=int, metavar="N", help="most records of a micro-batch")
    made.add_argument("--group", metavar="ID", help="consumer group that shows the progress of the query")


def session(name: str) -> SparkSession:
    spark = SparkSession.builder.appName(name).getOrCreate()
    # Where Headrace is installed Spark finds the source by itself; this is for a checkout.
    spark.dataSource.register(HeadraceDataSource)
    return spark


def stream(spark: SparkSession, given: argparse.Namespace, topic: str) -> DataFrame:
    """The stream of a topic from its beginning, as the options ask for it."""
    reader = spark.readStream.format("headrace").option("headrace.bootstrap.servers", given.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    if given.max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(given.max_offsets))
    if given.group is not None:
        reader = reader.option("groupId", given.group)
    return reader.load()


def batch(spark: SparkSession, servers: str, topic: str, options: Mapping[str, Any] | None = None) -> DataFrame:
    """A topic as it is now."""
    reader = spark.read.format("headrace").option("headrace.bootstrap.servers", servers).option("subscribe", topic)
    return reader.options(**(options or {})).load()


def run(writer: Any, given: argparse.Namespace) -> None:
    """Runs a stream to its end, or until it is stopped."""
    writer = writer.option("checkpointLocation", given.checkpoint)
    if given.continuous:
        query = writer.trigger(processingTime=given.trigger).start()
    else:
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    sys.stderr.write(f"{query.name or query.id}: {rows} rows in the last {len(query.recentProgress)} micro-batches\n")


def milliseconds(text: str) -> int:
    """A time of an option, such as 2026-01-31T12:00:00Z (UTC without a zone), in milliseconds since 1970.

    >>> milliseconds("1970-01-01T00:00:01")
    1000
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write it as 2026-01-31T12:00:00Z") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
