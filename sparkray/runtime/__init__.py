"""What makes a process part of a cluster: owns objects, submits tasks, fetches values.

The same code runs in drivers, Spark UDF processes and workers.  It never loads gRPC.
"""
