"""The head: which nodes and jobs a cluster has, and a small key-value store."""
