"""A job of a user's own: what the Parquet files and the counted windows of a topic hold, as one line of JSON."""

from __future__ import annotations

import json

from pyspark.sql import functions as f

from headrace.spark.jobs import batch, parser, session


def main() -> None:
    made = parser("spark_check", "Say what two jobs have written.", "")
    made.add_argument("--parquet", required=True)
    made.add_argument("--counts", required=True)
    given = made.parse_args()
    spark = session("spark_check")
    row = f.concat("key", f.encode(f.lit("="), "UTF-8"), "value")
    rows = spark.read.parquet(given.parquet).agg(
        f.count("*"), f.count_distinct("partition", "offset"), f.sum(f.crc32(row))
    )
    count, places, checksum = rows.collect()[0]
    counts = batch(spark, given.bootstrap_servers, given.counts).select(f.decode("value", "UTF-8")).collect()
    said = {"rows": count, "places": places, "checksum": checksum, "windows": [json.loads(each[0]) for each in counts]}
    print("found " + json.dumps(said), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main()
