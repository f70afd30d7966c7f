"""What Parquet files hold, as Spark reads them: `spark_check.py PATH` prints one line of JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
row = f.concat("key", f.encode(f.lit("="), "UTF-8"), "value")
rows = spark.read.parquet(sys.argv[1])
found = rows.agg(f.count("*"), f.count_distinct("partition", "offset"), f.sum(f.crc32(row))).collect()[0]
print(json.dumps(dict(zip(("rows", "places", "checksum"), found, strict=True))), flush=True)  # noqa: T201 - its output
