"""Where Spark finds the data source `headrace`: it looks for a `DefaultSource` in every module named pyspark_*."""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
