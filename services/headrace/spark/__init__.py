"""Topics in and out of PySpark: a Python data source named `headrace`, with the options of Spark's Kafka source.

`spark.read.format("headrace")` finds it by itself once Headrace is installed beside PySpark (`pyspark_headrace`).
What is decided here without Spark and without a network (`options`, `offsets`, `planning`, `filters`, `columns`,
`writing`) imports neither; `source` and `sink` are what Spark calls.
"""
