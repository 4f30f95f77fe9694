"""Spark's side: the data source ``replog``. Besides the demo's job, only this package imports pyspark."""
