"""The latest value of every key of a topic, as Parquet: what a compacted topic means, whether or not it was cleaned."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as f

from headrace.spark.jobs import batch, parser, session

EXAMPLES = """\
examples:
  compacted_snapshot --bootstrap-servers demo-metadata:9094 --topic accounts --output /data/accounts
  # as it was at some offsets
  compacted_snapshot --bootstrap-servers demo-metadata:9094 --topic accounts --output /data/accounts-then \\
      --ending-offsets '{"accounts":{"0":1000,"1":1200}}'
"""


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser("compacted_snapshot", "Write the latest value of every key to Parquet.", EXAMPLES)
    made.add_argument("--topic", required=True)
    made.add_argument("--output", required=True, metavar="URI", help="folder of the Parquet files; it is replaced")
    made.add_argument("--ending-offsets", default="latest", metavar="JSON", help="where to end (latest)")
    made.add_argument("--keep-deleted", action="store_true", help="keep keys whose latest value is null (a tombstone)")
    given = made.parse_args(arguments)

    rows = batch(
        session("compacted_snapshot"), given.bootstrap_servers, given.topic, {"endingOffsets": given.ending_offsets}
    )
    # A key lives in one partition, where offsets say what came last.
    latest = (
        rows.where("key is not null")
        .groupBy("key")
        .agg(f.max_by(f.struct("value", "partition", "offset", "timestamp"), "offset").alias("last"))
    )
    snapshot = latest.select("key", "last.*")
    if not given.keep_deleted:
        snapshot = snapshot.where("value is not null")
    snapshot.write.mode("overwrite").parquet(given.output)


if __name__ == "__main__":
    main()
