"""Real clusters on one machine, and ways to hurt them, for our tests and our users'."""

from sparkray.testing.cluster import Cluster, ClusterNode

__all__ = ["Cluster", "ClusterNode"]
