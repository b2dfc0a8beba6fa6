"""The life of every placement group, and which nodes its bundles go to.  Pure.

    create -> PENDING --placed--> CREATED --node died--> RESCHEDULING --placed--> ...
                 |                   |                        |
                 +----- removed -----+------------------------+-----> REMOVED

Every try to reserve has a number, the attempt, which grows over all groups, so that
late words about an earlier one are told from news.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparkray.labels import Selector, matches
from sparkray.protocol import placement as p
from sparkray.resources import UNIT, Vector, fits, take

#: How many removed groups are still listed; the oldest are forgotten first.
MAX_REMOVED: Final = 1_000


class GroupState(enum.Enum):
    PENDING = p.PENDING
    """No bundle is reserved for good; tried again whenever nodes change."""
    CREATED = p.CREATED
    """Every bundle has its place."""
    RESCHEDULING = p.RESCHEDULING
    """Some bundles were lost with their node and look for another; the rest serves."""
    REMOVED = p.REMOVED
    """Final."""


@dataclass(slots=True, eq=False)
class Group:
    """One placement group."""

    request: p.CreatePlacementGroup
    nodes: list[bytes]  #: by bundle; b"" while it has no place
    attempts: list[int]  #: by bundle: the attempt that reserved it
    state: GroupState = GroupState.PENDING
    version: int = 1

    def row(self) -> p.GroupRow:
        request = self.request
        return p.GroupRow(
            group_id=request.group_id,
            version=self.version,
            state=self.state.value,
            name=request.name,
            namespace=request.namespace,
            strategy=request.strategy,
            bundles=request.bundles,
            nodes=list(self.nodes),
            detached=request.detached,
            job_id=request.job_id,
        )

    def selector(self, index: int) -> Selector:
        """Return which nodes will do for a bundle."""
        selectors = self.request.selectors
        return selectors[index] if selectors else ()

    @property
    def is_waiting(self) -> bool:
        return self.state in (GroupState.PENDING, GroupState.RESCHEDULING)

    def missing(self) -> list[int]:
        """Return the bundles without a place."""
        return [index for index, node_id in enumerate(self.nodes) if not node_id]


@dataclass(frozen=True, slots=True)
class Tell:
    """Effect: tell all agents of the group's new row."""

    group: Group


@dataclass(frozen=True, slots=True)
class Return:
    """Effect: an agent shall end what runs in these bundles, and free them."""

    node_id: bytes
    group_id: bytes
    attempt: int
    indexes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EndActors:
    """Effect: the actors that belong to the group end."""

    group_id: bytes
    reason: str


Effect = Tell | Return | EndActors


@dataclass(slots=True)
class GroupTable:
    """All placement groups, removed ones too."""

    groups: dict[bytes, Group] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)  #: what has to be written
    _names: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _attempt: int = 0

    def restore(self, groups: Iterable[Group], starts: int) -> None:
        """Take what an earlier head wrote.

        Args:
            starts: how often the cluster's head has started: attempts of this one are
                later than all of earlier ones, which nobody wrote down.
        """
        self._attempt = starts << 32
        for group in groups:
            request = group.request
            self.groups[request.group_id] = group
            if request.name and group.state is not GroupState.REMOVED:
                self._names[request.namespace, request.name] = request.group_id

    def resume(self, alive: Iterable[bytes]) -> list[Effect]:
        """Return what frees the bundles that an earlier head was reserving: the groups
        that wait for them are planned anew."""
        reason = "the head died before its group was created"
        return [
            Return(
                node_id,
                group.request.group_id,
                self._attempt,
                tuple(group.missing()),
                reason,
            )
            for group in self.waiting()
            for node_id in alive
        ]

    def create(self, request: p.CreatePlacementGroup) -> tuple[Group, list[Effect]]:
        """Take a group in.

        Raises:
            ValueError: another group has the name.
        """
        known = self.groups.get(request.group_id)
        if known is not None:
            return known, []
        if request.name:
            name = request.namespace, request.name
            if name in self._names:
                raise ValueError(
                    f"a placement group named {request.name!r} is in namespace"
                    f" {request.namespace!r} already; take another name, or remove it"
                )
            self._names[name] = request.group_id
        count = len(request.bundles)
        group = Group(request, [b""] * count, [0] * count)
        self.groups[request.group_id] = group
        self.changed.add(request.group_id)
        return group, [Tell(group)]

    def get(self, group_id: bytes) -> Group:
        """Return a group, a removed one too.

        Raises:
            ValueError: there is none.
        """
        try:
            return self.groups[group_id]
        except KeyError:
            raise ValueError(f"there is no placement group {group_id.hex()}") from None

    def find(self, name: str, namespace: str) -> Group:
        """Return the group of a name.

        Raises:
            ValueError: there is none; names the namespace that was searched.
        """
        group_id = self._names.get((namespace, name))
        if group_id is None:
            raise ValueError(
                f"no placement group is named {name!r} in namespace {namespace!r}; it"
                " may have been removed, or be in another namespace"
            )
        return self.groups[group_id]

    def waiting(self) -> list[Group]:
        """Return the groups with bundles to place, those that lost some first."""
        waiting = [group for group in self.groups.values() if group.is_waiting]
        return sorted(waiting, key=lambda group: group.state is GroupState.PENDING)

    def next_attempt(self) -> int:
        self._attempt += 1
        return self._attempt

    def placed(
        self, group: Group, attempt: int, places: dict[int, bytes], alive: set[bytes]
    ) -> list[Effect]:
        """All bundles of an attempt are reserved: take them, or return them.

        Args:
            alive: the nodes that live; one may have died since the attempt began.
        """
        kept_alive = {node for node in group.nodes if node} <= alive
        if (
            not group.is_waiting
            or set(group.missing()) != set(places)
            or not (kept_alive and set(places.values()) <= alive)
        ):
            return undo(group, attempt, places, "its reservation failed")
        for index, node_id in places.items():
            group.nodes[index], group.attempts[index] = node_id, attempt
        group.state = GroupState.CREATED
        return self._changed(group)

    def remove(self, group_id: bytes, reason: str) -> list[Effect]:
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.REMOVED:
            return []
        group.state = GroupState.REMOVED
        name = group.request.namespace, group.request.name
        if self._names.get(name) == group_id:
            del self._names[name]
        at = {index: node for index, node in enumerate(group.nodes) if node}
        attempt = max(group.attempts)
        returns = undo(group, attempt, at, reason)
        group.nodes = [b""] * len(group.nodes)
        effects = [*self._changed(group), EndActors(group_id, reason), *returns]
        self._forget_old()
        return effects

    def job_ended(self, job_id: bytes) -> list[Effect]:
        effects: list[Effect] = []
        for group in list(self.groups.values()):
            if group.request.job_id == job_id and not group.request.detached:
                effects += self.remove(group.request.group_id, "its job has ended")
        return effects

    def node_gone(self, node_id: bytes) -> list[Effect]:
        """Bundles of a dead node are placed anew."""
        effects: list[Effect] = []
        for group in self.groups.values():
            if node_id in group.nodes:
                group.nodes = [b"" if n == node_id else n for n in group.nodes]
                group.state = GroupState.RESCHEDULING
                effects += self._changed(group)
        return effects

    def demand(self) -> list[tuple[Vector, int]]:
        """Return the bundles that wait for a place, equal ones together."""
        shapes: Counter[tuple[tuple[str, int], ...]] = Counter()
        for group in self.waiting():
            for index in group.missing():
                shapes[tuple(sorted(group.request.bundles[index].items()))] += 1
        return [(dict(shape), count) for shape, count in shapes.items()]

    def apart(self) -> int:
        """Return how many nodes a group waits for whose bundles share none."""
        return max(
            (
                len(group.request.bundles)
                for group in self.waiting()
                if group.request.strategy == p.STRICT_SPREAD
            ),
            default=0,
        )

    def _changed(self, group: Group) -> list[Effect]:
        group.version += 1
        self.changed.add(group.request.group_id)
        return [Tell(group)]

    def _forget_old(self) -> None:
        gone = [i for i, g in self.groups.items() if g.state is GroupState.REMOVED]
        for old in gone[:-MAX_REMOVED]:
            del self.groups[old]
            self.changed.add(old)


def undo(
    group: Group, attempt: int, places: dict[int, bytes], reason: str
) -> list[Effect]:
    """Return what gives the bundles of an attempt back, one effect a node."""
    return [
        Return(node_id, group.request.group_id, attempt, tuple(indexes), reason)
        for node_id, indexes in by_node(places).items()
    ]


def by_node(places: dict[int, bytes]) -> dict[bytes, list[int]]:
    nodes: dict[bytes, list[int]] = {}
    for index, node_id in sorted(places.items()):
        nodes.setdefault(node_id, []).append(index)
    return nodes


# --- where bundles go -----------------------------------------------------------------


class Room(NamedTuple):
    """A node that may take bundles."""

    node_id: bytes
    available: Vector
    labels: Mapping[str, str]


def plan(group: Group, rooms: Sequence[Room]) -> dict[int, bytes] | None:
    """Choose a node for each bundle without one; None if they do not all fit now.

    PACK uses few nodes and SPREAD many, as far as there is room; STRICT_PACK uses
    exactly one, and STRICT_SPREAD no node twice.

    Args:
        rooms: the living nodes and what is free on them.
    """
    strategy, missing = group.request.strategy, group.missing()
    used = Counter(node_id for node_id in group.nodes if node_id)
    if strategy == p.STRICT_PACK:
        if used:
            rooms = [room for room in rooms if room.node_id in used]
        return _on_one(group, missing, rooms)
    if strategy == p.PACK and not used:
        on_one = _on_one(group, missing, rooms)
        if on_one is not None:
            return on_one
    if strategy == p.STRICT_SPREAD:
        rooms = [room for room in rooms if room.node_id not in used]
        return _each_its_own(group, missing, rooms)
    return _one_by_one(group, missing, rooms, used, spread=strategy == p.SPREAD)


def _on_one(
    group: Group, missing: list[int], rooms: Sequence[Room]
) -> dict[int, bytes] | None:
    """All on the fullest node that takes them."""
    wanted: Vector = {}
    for index in missing:
        for name, units in group.request.bundles[index].items():
            wanted[name] = wanted.get(name, 0) + units
    fitting = [
        room
        for room in rooms
        if fits(wanted, room.available)
        and all(matches(group.selector(index), room.labels) for index in missing)
    ]
    if not fitting:
        return None
    node = min(fitting, key=lambda room: _left(room.available, wanted))
    return dict.fromkeys(missing, node.node_id)


def _each_its_own(
    group: Group, missing: list[int], rooms: Sequence[Room]
) -> dict[int, bytes] | None:
    """A different node for each: a matching, found by augmenting paths."""
    bundles = group.request.bundles
    holder: dict[bytes, int] = {}

    def place(index: int, seen: set[bytes]) -> bool:
        for room in sorted(rooms, key=lambda room: -room.available.get("CPU", 0)):
            if room.node_id in seen or not fits(bundles[index], room.available):
                continue
            if not matches(group.selector(index), room.labels):
                continue
            seen.add(room.node_id)
            other = holder.get(room.node_id)
            if other is None or place(other, seen):
                holder[room.node_id] = index
                return True
        return False

    if len(missing) > len(rooms) or not all(place(index, set()) for index in missing):
        return None
    return {index: node_id for node_id, index in holder.items()}


def _one_by_one(
    group: Group,
    missing: list[int],
    rooms: Sequence[Room],
    used: Counter[bytes],
    *,
    spread: bool,
) -> dict[int, bytes] | None:
    """The largest bundles first, each where the strategy likes it best."""
    bundles = group.request.bundles
    left = {room.node_id: dict(room.available) for room in rooms}
    labels = {room.node_id: room.labels for room in rooms}
    used = Counter(used)
    places: dict[int, bytes] = {}
    for index in sorted(missing, key=lambda i: (-_size(bundles[i]), i)):
        wanted = bundles[index]
        fitting = [
            node_id
            for node_id, room in left.items()
            if fits(wanted, room) and matches(group.selector(index), labels[node_id])
        ]
        if not fitting:
            return None

        def rank(node_id: bytes, wanted: Vector = wanted) -> tuple[int, float]:
            room = left[node_id]
            if spread:
                return used[node_id], -_left(room, wanted)
            return -min(1, used[node_id]), _left(room, wanted)

        chosen = min(fitting, key=rank)
        take(left[chosen], wanted)
        used[chosen] += 1
        places[index] = chosen
    return places


def _size(bundle: Vector) -> float:
    return sum(units for name, units in bundle.items() if "memory" not in name)


def _left(room: Vector, wanted: Vector) -> float:
    """Return how much a node would have left of what all nodes have and is scarce."""
    return (room.get("CPU", 0) - wanted.get("CPU", 0)) / UNIT
