"""sparkray on Spark: ``sparkray.init(spark)``, and joining from inside a UDF.

The only part that knows pyspark, and it imports that where it is used: an extra.
"""
