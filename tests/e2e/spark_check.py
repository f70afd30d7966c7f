"""A job of a user's own: what Parquet files or the counted windows of a topic hold, as one line of JSON."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headrace.spark.jobs import batch, parser, session


def parquet(spark: SparkSession, path: str) -> dict[str, Any]:
    row = f.concat("key", f.encode(f.lit("="), "UTF-8"), "value")
    rows = spark.read.parquet(path).agg(f.count("*"), f.count_distinct("partition", "offset"), f.sum(f.crc32(row)))
    return dict(zip(("rows", "places", "checksum"), rows.collect()[0], strict=True))


def windows(spark: SparkSession, servers: str, topic: str) -> dict[str, Any]:
    counts = batch(spark, servers, topic).select(f.decode("value", "UTF-8")).collect()
    return {"windows": [json.loads(each[0]) for each in counts]}


def main() -> None:
    made = parser("spark_check", "Say what a job has written.", "")
    written = made.add_mutually_exclusive_group(required=True)
    written.add_argument("--parquet", metavar="URI")
    written.add_argument("--counts", metavar="TOPIC")
    given = made.parse_args()
    spark = session("spark_check")
    said = parquet(spark, given.parquet) if given.parquet else windows(spark, given.bootstrap_servers, given.counts)
    print("found " + json.dumps(said), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main()
