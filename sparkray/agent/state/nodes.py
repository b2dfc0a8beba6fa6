"""The other nodes as the head last told, and where a request could go.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkray.resources import UNIT, Vector, describe, fits, take


@dataclass(slots=True)
class Node:
    node_id: bytes
    name: str  #: for messages
    total: Vector
    available: Vector  #: what is left of it after what this node sent there since


class ClusterMap:
    """This node and its peers."""

    def __init__(self, own: Node) -> None:
        self.own = own
        self.peers: dict[bytes, Node] = {}
        self._turn = 0

    def update(self, peers: list[Node]) -> None:
        self.peers = {node.node_id: node for node in peers}

    def forget(self, node_id: bytes) -> None:
        self.peers.pop(node_id, None)

    def feasible(self, request: Mapping[str, int]) -> bool:
        """Tell if any living node could ever serve this."""
        nodes = (self.own, *self.peers.values())
        return any(fits(request, node.total) for node in nodes)

    def free_peer(self, request: Mapping[str, int]) -> Node | None:
        """Return the least loaded peer with room at this moment."""
        return self._least(
            [n for n in self.peers.values() if fits(request, n.available)]
        )

    def possible_peer(self, request: Mapping[str, int]) -> Node | None:
        """Return the least loaded peer that could serve this at some time."""
        return self._least([n for n in self.peers.values() if fits(request, n.total)])

    def spread(self, request: Mapping[str, int]) -> Node | None:
        """Return the least loaded node with room at this moment, perhaps this one."""
        nodes = [self.own, *self.peers.values()]
        return self._least([n for n in nodes if fits(request, n.available)])

    def feasible_count(self, request: Mapping[str, int]) -> int:
        nodes = (self.own, *self.peers.values())
        return sum(fits(request, node.total) for node in nodes)

    def sent(self, node: Node, request: Mapping[str, int], count: int) -> None:
        """Note that ``count`` requests go there, before the head tells of it."""
        for _ in range(count):
            take(node.available, request)

    def refused(self, node_id: bytes) -> None:
        """Note that a node had no room, whatever the last view says."""
        if node_id in self.peers:
            self.peers[node_id].available = {}

    def how_many(self, node: Node, request: Mapping[str, int], most: int) -> int:
        """Return how many of ``most`` requests fit a node now, at least 1."""
        per_name = [node.available.get(n, 0) // units for n, units in request.items()]
        return max(1, min([most, *per_name]))

    def largest(self, request: Mapping[str, int]) -> str:
        """Describe the node that comes nearest to a request."""

        def score(node: Node) -> tuple[int, int]:
            missing = sum(
                UNIT * max(0, units - node.total.get(name, 0)) // units
                for name, units in request.items()
            )
            return -missing, node.total.get("CPU", 0)

        node = max((self.own, *self.peers.values()), key=score)
        shown = {n: u for n, u in node.total.items() if not n.startswith("node:")}
        return f"{describe(shown)} ({node.name})"

    def _least(self, nodes: list[Node]) -> Node | None:
        if not nodes:
            return None
        self._turn += 1  # equal loads take turns
        turned = nodes[self._turn % len(nodes) :] + nodes[: self._turn % len(nodes)]
        return min(turned, key=_load)


def _load(node: Node) -> float:
    """Return how busy a node is: 0 idle, 1 full, more if CPUs are lent twice."""
    total = node.total.get("CPU", 0)
    return 1 - node.available.get("CPU", 0) / total if total else 1.0
