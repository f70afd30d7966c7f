"""A topic into Parquet files, in folders by the time of the records. Every record is in them exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as f

from headrace.spark.jobs import add_stream_options, parser, run, session, stream

EXAMPLES = """\
examples:
  # everything that is there now; again tomorrow goes on where this ended
  topic_to_parquet --bootstrap-servers demo-metadata:9094 --topic orders \\
      --output s3a://lake/orders --checkpoint s3a://lake/_checkpoints/orders
  # all day long, every minute, in folders of an hour
  topic_to_parquet --bootstrap-servers demo-metadata:9094 --topic orders --by hour \\
      --output /data/orders --checkpoint /data/_checkpoints/orders --continuous --trigger '1 minute'
"""


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser("topic_to_parquet", "Write a topic to Parquet files, in folders by time.", EXAMPLES)
    made.add_argument("--topic", required=True)
    made.add_argument("--output", required=True, metavar="URI", help="folder of the Parquet files")
    made.add_argument("--by", choices=("day", "hour"), default="day", help="folders of a day (date=) or of an hour too")
    add_stream_options(made)
    given = made.parse_args(arguments)

    rows = stream(session("topic_to_parquet"), given, given.topic).withColumn("date", f.to_date("timestamp"))
    folders = ["date"]
    if given.by == "hour":
        rows = rows.withColumn("hour", f.hour("timestamp"))
        folders.append("hour")
    writer = rows.writeStream.format("parquet").queryName("topic_to_parquet").option("path", given.output)
    run(writer.partitionBy(*folders), given)


if __name__ == "__main__":
    main()
