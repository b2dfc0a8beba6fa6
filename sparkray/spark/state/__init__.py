"""Decisions of the Spark side.  Pure: no clock, no sockets, no pyspark."""
