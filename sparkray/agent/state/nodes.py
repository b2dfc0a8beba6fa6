"""The other nodes as the head last told, and where a request could go.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sparkray.labels import Selector, hint, matches
from sparkray.resources import UNIT, Vector, describe, fits, remember, take


@dataclass(slots=True)
class Node:
    node_id: bytes
    name: str  #: for messages
    total: Vector
    available: Vector  #: what is left of it after what this node sent there since
    labels: Mapping[str, str] = field(default_factory=dict)

    def could_serve(self, request: Mapping[str, int], selector: Selector) -> bool:
        """Tell if it will do once it is free."""
        return fits(request, self.total) and matches(selector, self.labels)

    def has_room(self, request: Mapping[str, int], selector: Selector) -> bool:
        """Tell if it will do now."""
        return fits(request, self.available) and matches(selector, self.labels)


class ClusterMap:
    """This node and its peers."""

    def __init__(self, own: Node) -> None:
        self.own = own
        self.peers: dict[bytes, Node] = {}
        self.lost: dict[bytes, None] = {}  #: which died last; they do not come back
        self._turn = 0

    def update(self, peers: list[Node]) -> list[Node]:
        """Take the newest view; return the nodes that are new in it."""
        before = self.peers
        self.peers = {node.node_id: node for node in peers}
        return [node for node in peers if node.node_id not in before]

    def forget(self, node_id: bytes) -> None:
        self.peers.pop(node_id, None)
        remember(self.lost, node_id)

    def get(self, node_id: bytes) -> Node | None:
        return self.own if node_id == self.own.node_id else self.peers.get(node_id)

    def feasible(self, request: Mapping[str, int], selector: Selector = ()) -> bool:
        """Tell if any living node could ever serve this."""
        return any(node.could_serve(request, selector) for node in self._all())

    def free_peer(
        self, request: Mapping[str, int], selector: Selector = ()
    ) -> Node | None:
        """Return the least loaded peer with room at this moment."""
        return self._least(_free(self.peers.values(), request, selector))

    def possible_peer(
        self, request: Mapping[str, int], selector: Selector = ()
    ) -> Node | None:
        """Return the least loaded peer that could serve this at some time."""
        peers = self.peers.values()
        return self._least([n for n in peers if n.could_serve(request, selector)])

    def spread(
        self, request: Mapping[str, int], selector: Selector = ()
    ) -> Node | None:
        """Return the least loaded node with room at this moment, perhaps this one."""
        return self._least(_free(self._all(), request, selector))

    def feasible_count(
        self, request: Mapping[str, int], selector: Selector = ()
    ) -> int:
        return sum(node.could_serve(request, selector) for node in self._all())

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

    def unmatched(self, selector: Selector) -> str:
        """Return why a selector holds a request up, "" if it does not."""
        nodes = list(self._all())
        if any(matches(selector, node.labels) for node in nodes):
            return ""
        return hint(selector, [(node.name, node.labels) for node in nodes])

    def largest(self, request: Mapping[str, int], selector: Selector = ()) -> str:
        """Describe the node that comes nearest to a request."""

        def score(node: Node) -> tuple[int, int]:
            missing = sum(
                UNIT * max(0, units - node.total.get(name, 0)) // units
                for name, units in request.items()
            )
            return -missing, node.total.get("CPU", 0)

        nodes = list(self._all())
        labelled = [node for node in nodes if matches(selector, node.labels)]
        node = max(labelled or nodes, key=score)
        shown = {n: u for n, u in node.total.items() if not n.startswith("node:")}
        return f"{describe(shown)} ({node.name})"

    def _all(self) -> Iterator[Node]:
        yield self.own
        yield from self.peers.values()

    def _least(self, nodes: list[Node]) -> Node | None:
        if not nodes:
            return None
        self._turn += 1  # equal loads take turns
        turned = nodes[self._turn % len(nodes) :] + nodes[: self._turn % len(nodes)]
        return min(turned, key=_load)


def _free(
    nodes: Iterable[Node], request: Mapping[str, int], selector: Selector
) -> list[Node]:
    return [node for node in nodes if node.has_room(request, selector)]


def _load(node: Node) -> float:
    """Return how busy a node is: 0 idle, 1 full, more if CPUs are lent twice."""
    total = node.total.get("CPU", 0)
    return 1 - node.available.get("CPU", 0) / total if total else 1.0
