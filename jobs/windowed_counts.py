"""Counts of records by key and window of their own time, written back to a topic as json.

A window is written once, when the watermark has passed it: records that come later than `--late` are left out, and the
last windows of a topic wait for records after them. (Spark's Python sinks take rows that are final, and no updates.)
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as f

from headrace.spark.jobs import add_stream_options, parser, run, session, stream

EXAMPLES = """\
examples:
  windowed_counts --bootstrap-servers demo-metadata:9094 --topic clicks --output-topic clicks-by-minute \\
      --window '1 minute' --late '10 seconds' --checkpoint /data/_checkpoints/clicks --continuous
  # what the answers look like
  headrace consume clicks-by-minute --from beginning
  {"key":"home","start":"2026-01-31T12:00:00.000Z","end":"2026-01-31T12:01:00.000Z","count":42}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser("windowed_counts", "Count records by key and window of time, back to a topic.", EXAMPLES)
    made.add_argument("--topic", required=True)
    made.add_argument("--output-topic", required=True)
    made.add_argument("--window", default="1 minute", metavar="TIME", help="length of a window (1 minute)")
    made.add_argument("--late", default="10 seconds", metavar="TIME", help="how late a record may be (10 seconds)")
    add_stream_options(made)
    given = made.parse_args(arguments)

    rows = stream(session("windowed_counts"), given, given.topic)
    counts = (
        rows.withWatermark("timestamp", given.late)
        .groupBy(f.window("timestamp", given.window).alias("window"), f.col("key"))
        .count()
    )
    answer = f.struct(
        f.decode("key", "UTF-8").alias("key"),
        f.col("window.start").alias("start"),
        f.col("window.end").alias("end"),
        f.col("count"),
    )
    out = counts.select("key", f.to_json(answer).alias("value"))
    writer = out.writeStream.format("headrace").queryName("windowed_counts").outputMode("append")
    writer = writer.option("headrace.bootstrap.servers", given.bootstrap_servers)
    run(writer.option("topic", given.output_topic), given)


if __name__ == "__main__":
    main()
