"""Spark's side: the data source ``replog``. The only package that imports pyspark."""
