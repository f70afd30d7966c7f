"""The records of a time range from one topic into another, with their keys, values and headers."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as f

from headrace.spark.jobs import batch, milliseconds, parser, session

EXAMPLES = """\
examples:
  # an hour again, for a consumer that had a bug
  replay --bootstrap-servers demo-metadata:9094 --topic orders --output-topic orders-again \\
      --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
  # everything since then, and each record into the partition it came from
  replay --bootstrap-servers demo-metadata:9094 --topic orders --output-topic orders-copy \\
      --from 2026-01-31T12:00:00Z --keep-partitions
"""


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser("replay", "Write the records of a time range to another topic.", EXAMPLES)
    made.add_argument("--topic", required=True)
    made.add_argument("--output-topic", required=True)
    made.add_argument("--from", dest="begin", type=milliseconds, required=True, metavar="TIME", help="first time")
    made.add_argument("--to", dest="end", type=milliseconds, metavar="TIME", help="the time after the last (now)")
    made.add_argument(
        "--keep-partitions", action="store_true", help="each record into the partition it came from; else by its key"
    )
    given = made.parse_args(arguments)
    if given.end is not None and given.end <= given.begin:
        made.error("--to must be after --from")
    if given.topic == given.output_topic:
        made.error("--output-topic is the topic itself: the records would be read again and again")

    spark = session("replay")
    # Offsets found by time bound what is read; records whose own times are out of order are sorted out one by one.
    bounds = {
        "startingTimestamp": given.begin,
        "startingOffsetsByTimestampStrategy": "latest",
        "includeHeaders": "true",
    }
    rows = batch(spark, given.bootstrap_servers, given.topic, bounds)
    rows = rows.where(f.col("timestamp") >= f.timestamp_millis(f.lit(given.begin)))
    if given.end is not None:
        rows = rows.where(f.col("timestamp") < f.timestamp_millis(f.lit(given.end)))
    columns = ["key", "value", "headers", *(["partition"] if given.keep_partitions else [])]
    writer = rows.select(columns).write.format("headrace").mode("append")
    writer = writer.option("headrace.bootstrap.servers", given.bootstrap_servers).option("includeHeaders", "true")
    writer.option("topic", given.output_topic).save()


if __name__ == "__main__":
    main()
