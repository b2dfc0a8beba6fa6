"""What a cluster on Spark is started with besides what `sparkray.init` takes.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkray.spark import sizing

#: Nodes that nobody needed for so long are given back.
IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ClusterOptions:
    """See `sparkray.spark.start_cluster`.

    Raises:
        TypeError, ValueError: an option that makes no sense.
    """

    num_nodes: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    memory: int | None = None
    idle_timeout_s: float = IDLE_TIMEOUT_S
    hold_slots: bool | None = None
    driver_cpus: float = 0
    head_port: int | None = None
    worker_port_min: int | None = None
    worker_port_max: int | None = None
    start_timeout_s: float | None = None

    def __post_init__(self) -> None:
        assert self.count  # refuses what makes no sense
        _check("idle_timeout_s", self.idle_timeout_s)
        for name in ("memory", "start_timeout_s"):
            if (value := getattr(self, name)) is not None:
                _check(name, value)

    @property
    def count(self) -> sizing.NodeCount:
        return sizing.count_nodes(self.num_nodes, self.min_nodes, self.max_nodes)

    def is_elastic(self, *, dynamic: bool) -> bool:
        """Whether the number of nodes follows the demand, or that of executors.

        Args:
            dynamic: whether Spark takes executors back that are not used.
        """
        return self.num_nodes is None and (dynamic or self.max_nodes is not None)

    def holds(self, *, dynamic: bool) -> bool | None:
        """Whether nodes hold Spark slots; None: as `sizing.holds_slot` says.

        A number of nodes is promised, and Spark takes executors away that hold none.
        """
        promised = self.num_nodes is not None or self.max_nodes is not None
        if self.hold_slots is None and dynamic and promised:
            return True
        return self.hold_slots


def _check(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be more than 0, not {value}")
