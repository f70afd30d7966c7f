"""What the jobs of jobs/ share: the session, the options that all of them take, and how they run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.offsets import StreamOffset
from headrace.spark.source import HeadraceDataSource

_LOOK_SECONDS = 1.0


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
    """Runs a stream to its end, or until it is stopped, and says after each micro-batch how far it has come."""
    writer = writer.option("checkpointLocation", given.checkpoint)
    if given.continuous:
        query = writer.trigger(processingTime=given.trigger).start()
    else:
        query = writer.trigger(availableNow=True).start()
    told, ended = Progress(query.name or str(query.id)), False
    while not ended:
        ended = query.awaitTermination(_LOOK_SECONDS)
        for line in told.news(query.recentProgress):
            sys.stderr.write(line + "\n")
    sys.stderr.write(f"{told.name}: {told.rows} rows in {told.batches} micro-batches\n")


@dataclass
class Progress:
    """What a query has done, told micro-batch by micro-batch."""

    name: str
    rows: int = 0
    batches: int = 0
    last: int = -1

    def news(self, recent: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """A line for each micro-batch with rows that was not told yet; Spark keeps the last hundred."""
        for each in recent:
            if each["batchId"] <= self.last or not each["numInputRows"]:
                continue
            self.last = each["batchId"]
            self.rows += each["numInputRows"]
            self.batches += 1
            seconds = each["batchDuration"] / 1000
            yield (
                f"{self.name}: micro-batch {self.last}: {each['numInputRows']} rows in {seconds:.1f} s, "
                f"{_behind(each['sources'])} behind"
            )


def _behind(sources: Iterable[Mapping[str, Any]]) -> int:
    """Records that are there and not read yet, as far as the sources know."""
    behind = 0
    for source in sources:
        # A micro-batch that is repeated after a restart comes with the text "null" for what is there.
        read, there = (json.loads(source[name] or "null") for name in ("endOffset", "latestOffset"))
        if read and there:
            at = StreamOffset.decode(read)
            behind += sum(max(0, end - at.get(partition, 0)) for partition, end in StreamOffset.decode(there).items())
    return behind


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
