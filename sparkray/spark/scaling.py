"""How many nodes an elastic cluster shall have, and which of them to let go.  Pure.

             unmet demand for `GROW_AFTER_S`              a drain that was agreed to
    target  ------------------------------->  target + n  -------------------------> - 1
            (at most ``most``)                            (at least ``least``)

A node that is lost lowers nothing: the target stays, so another is started for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkray.resources import UNIT, Vector, take

#: Jobs that waited for so long without any node coming up are too few.
PRESS_AFTER_S = 1.0
#: While Spark has no executor to give and other jobs to run, ours keep slots for so
#: long, and then leave them to those for so long.
PRESS_FOR_S, REST_S = 120.0, 60.0
#: Demand, or a stage of Spark's own, that is gone sooner than this starts no node.
GROW_AFTER_S = 1.0


@dataclass(frozen=True)
class Limits:
    """Between which numbers of nodes a cluster moves."""

    least: int
    most: int | None  #: None: as many as Spark gives executors for
    idle_timeout_s: float

    def within(self, nodes: int) -> int:
        """Return the number that is allowed and comes nearest."""
        nodes = max(nodes, self.least)
        return nodes if self.most is None else min(nodes, self.most)


@dataclass(frozen=True)
class NodeUse:
    """What one node has, and whether anybody needs it."""

    node_id: bytes
    total: Mapping[str, int]
    available: Mapping[str, int]
    idle_s: float | None = None  #: for how long nobody has; None: somebody does


@dataclass(frozen=True)
class Look:
    """A cluster at one moment."""

    now_s: float
    nodes: Sequence[NodeUse]
    starting: int = 0  #: nodes that were asked for and are not there yet
    demand: Sequence[tuple[Mapping[str, int], int]] = ()  #: what waits: shape, count
    apart: int = 0  #: so many nodes something waits for that is to lie on one each
    with_stages: int = 0  #: executors whose Spark stages may ask for a node of theirs


@dataclass(frozen=True)
class Step:
    """What to do now."""

    target: int  #: so many nodes there should be
    drain: tuple[bytes, ...] = ()  #: ask these to leave, the longest idle first


class Scaler:
    """Follows the demand of one cluster.

    Args:
        limits: never fewer nodes, never more.
    """

    def __init__(self, limits: Limits) -> None:
        self.target = limits.least
        self._limits = limits
        self._shape: Vector = {}
        self._unmet_since: float | None = None
        self._stages_since: float | None = None
        self._wanted_s: float | None = None  #: when something last waited, or was lost
        self._seen = 0

    def look(self, look: Look) -> Step:
        """Take one look at the cluster; return what to do."""
        self._learn_shape(look.nodes)
        short = self._short(look)
        self._grow(look, short)
        self._give_up_waiting(look, short)
        at_work = short > 0 or look.starting or look.demand
        return Step(self.target, () if at_work else self._spare(look))

    def to_come(self, nodes: int) -> int:
        """Return by how many nodes this cluster could grow soon: no limit is a promise
        of Spark's to have so many executors."""
        soon = max(1, 2 * nodes)
        most = self._limits.most
        return soon if most is None else max(0, min(soon, most - nodes))

    def left(self, node_id: bytes) -> None:
        """A node was asked to leave and does."""
        self.target = self._limits.within(self.target - 1)

    def _learn_shape(self, nodes: Sequence[NodeUse]) -> None:
        """Nodes to come are taken to be as the largest that was seen."""
        totals = [self._shape, *(dict(node.total) for node in nodes)]
        self._shape = max(totals, key=lambda total: total.get("CPU", 0))

    def _short(self, look: Look) -> int:
        """Return how many nodes more the demand could use."""
        here = len(look.nodes) + look.starting
        rooms = [dict(node.available) for node in look.nodes]
        rooms += [dict(self._shape) for _ in range(look.starting)]
        short = nodes_for(look.demand, rooms, self._shape)
        return max(short, look.apart - here)

    def _grow(self, look: Look, short: int) -> None:
        self._unmet_since = _since(self._unmet_since, short > 0, look.now_s)
        self._stages_since = _since(
            self._stages_since, look.with_stages > 0, look.now_s
        )
        late_s = look.now_s - GROW_AFTER_S
        wanted = [self.target]
        if self._unmet_since is not None and self._unmet_since <= late_s:
            wanted.append(len(look.nodes) + look.starting + short)
        if self._stages_since is not None and self._stages_since <= late_s:
            wanted.append(look.with_stages)
        self.target = self._limits.within(max(wanted))

    def _give_up_waiting(self, look: Look, short: int) -> None:
        """Nodes that Spark has no executor for are not wanted for ever."""
        lost = len(look.nodes) < self._seen
        self._seen = len(look.nodes)
        if self._wanted_s is None or lost or look.demand or short > 0:
            self._wanted_s = look.now_s
        if look.now_s - self._wanted_s >= self._limits.idle_timeout_s:
            there = self._limits.within(max(len(look.nodes), look.with_stages))
            self.target = min(self.target, there)

    def _spare(self, look: Look) -> tuple[bytes, ...]:
        kept = max(self._limits.least, look.with_stages, look.apart)
        idle = [
            (node.idle_s, node.node_id)
            for node in look.nodes
            if node.idle_s is not None and node.idle_s >= self._limits.idle_timeout_s
        ]
        idle.sort(key=lambda pair: -pair[0])
        return tuple(node_id for _, node_id in idle[: max(0, len(look.nodes) - kept)])


class Pressure:
    """How many Spark jobs to have waiting so that the missing nodes come up.

    Spark gives a job any free slot, also one of an executor that carries a node: that
    job keeps the slot and waits, so that the next goes elsewhere or, if all are taken,
    makes Spark ask for one more executor.
    """

    def __init__(self) -> None:
        self._nodes = -1
        self._factor = 1
        self._since_s: float | None = None  #: of the last change; None: all are there
        self._began_s = 0.0

    def jobs(
        self, missing: int, nodes: int, slots: int, now_s: float, *, others: bool = True
    ) -> int:
        """Return the number.

        Args:
            nodes: that are there.
            slots: of their executors that jobs could take instead; 0 if jobs that find
                a node do not wait.
            others: whether other Spark jobs may want those slots.
        """
        if missing <= 0:
            self._since_s = None
            return 0
        if nodes != self._nodes or self._since_s is None:
            self._nodes, self._factor = nodes, 1
            self._since_s = self._began_s = now_s
        elif slots and others and self._rests(now_s):
            self._factor = 1
            return 0
        elif now_s - self._since_s >= PRESS_AFTER_S:
            self._factor, self._since_s = 2 * self._factor, now_s
        return min(missing * self._factor, missing + slots)

    def _rests(self, now_s: float) -> bool:
        return (now_s - self._began_s) % (PRESS_FOR_S + REST_S) > PRESS_FOR_S


def _since(since: float | None, is_so: bool, now_s: float) -> float | None:
    """Return since when something is so, None if it is not."""
    if not is_so:
        return None
    return now_s if since is None else since


def nodes_for(
    demand: Sequence[tuple[Mapping[str, int], int]],
    rooms: Sequence[Vector],
    shape: Mapping[str, int],
) -> int:
    """Return how many new nodes a demand needs that finds no room on those there are.

    First fit, the largest first.  What does not fit an empty node is left out: no
    number of them would serve it.

    Args:
        demand: shape of a request, and how many wait.
        rooms: what is free on each node that is there, or on its way.
        shape: what a new node has.
    """
    rooms = [dict(room) for room in rooms]
    known = len(rooms)

    def size(wanted: tuple[Mapping[str, int], int]) -> float:
        return max((u / (shape.get(n) or 1) for n, u in wanted[0].items()), default=0.0)

    for needs, count in sorted(demand, key=size, reverse=True):
        each = _how_many(needs, shape)
        if not each:
            continue
        for room in rooms:
            count -= _put(needs, count, room)
        while count > 0:
            rooms.append(dict(shape))
            count -= _put(needs, count, rooms[-1])
    return len(rooms) - known


def _how_many(needs: Mapping[str, int], room: Mapping[str, int]) -> int:
    """Return how many requests of a shape a room holds; those for nothing: all."""
    held = [room.get(name, 0) // units for name, units in needs.items() if units > 0]
    return max(0, min(held, default=UNIT))


def _put(needs: Mapping[str, int], count: int, room: Vector) -> int:
    """Put as many of a shape into a room as it holds; return how many those are."""
    placed = min(count, _how_many(needs, room))
    take(room, {name: units * placed for name, units in needs.items()})
    return placed
