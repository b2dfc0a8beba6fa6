"""Real clusters on one machine, and ways to hurt them, for our tests and our users'.

`Cluster` is here, the ways to hurt it are in `sparkray.testing.faults`.
"""

from sparkray.testing.cluster import Cluster, ClusterNode

__all__ = ["Cluster", "ClusterNode"]
