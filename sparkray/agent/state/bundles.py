"""Placement groups as one node sees them: the bundles that it keeps, and the rows that
say where all others are.  Pure.

A reserved bundle is a little node of its own: what it holds is taken from the node, and
leases inside the group take from the bundle instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sparkray.agent.state.devices import Devices, Share
from sparkray.agent.state.queues import Request
from sparkray.protocol import placement as p
from sparkray.resources import GPU, Vector, fits, give_back, take, total

#: Group id and index in the group.
BundleKey: TypeAlias = tuple[bytes, int]
#: How many rows of removed groups are kept.
MAX_REMOVED: Final = 1_000
#: How many returned attempts are remembered.
MAX_RETURNED: Final = 10_000


@dataclass(slots=True, eq=False)
class Bundle:
    """A bundle that is reserved on this node."""

    key: BundleKey
    attempt: int
    total: Vector
    available: Vector
    devices: Devices

    def fits(self, needs: Vector) -> bool:
        """Tell if there is room at this moment."""
        return fits(needs, self.available) and self.devices.fits(needs.get(GPU, 0))


@dataclass(slots=True)
class Bundles:
    """All bundles of this node, and all groups of the cluster.

    Args:
        node_id: this node.
        room: what is free on this node outside of bundles; changed in place.
        devices: which GPUs are free there; changed in place.
    """

    node_id: bytes
    room: Vector
    devices: Devices = field(default_factory=lambda: Devices({}))
    here: dict[BundleKey, Bundle] = field(default_factory=dict)
    rows: dict[bytes, p.GroupRow] = field(default_factory=dict)
    _returned: dict[bytes, int] = field(default_factory=dict)
    _turn: int = 0

    # --- what the head asks -----------------------------------------------------------

    def reserve(
        self, group_id: bytes, attempt: int, bundles: Mapping[int, Vector]
    ) -> bool:
        """Set bundles aside, all or none; False if they do not fit now."""
        if attempt <= self._returned.get(group_id, 0):
            return False
        missing = {
            index: vector
            for index, vector in bundles.items()
            if (group_id, index) not in self.here
        }
        wanted = total(missing.values())
        shares = self._shares(missing)
        if shares is None or not fits(wanted, self.room):
            return False
        take(self.room, wanted)
        for index in bundles.keys() - missing.keys():
            self.here[group_id, index].attempt = attempt
        for index, vector in missing.items():
            key, devices = (group_id, index), Devices(shares[index])
            self.devices.remove(shares[index])
            self.here[key] = Bundle(key, attempt, dict(vector), dict(vector), devices)
        return True

    def _shares(self, bundles: Mapping[int, Vector]) -> dict[int, Share] | None:
        """Choose the devices of each bundle; None if there are not enough.

        Whole devices first: a fraction must not break into the last whole one.
        """
        devices, shares = self.devices.copy(), dict[int, Share]()
        for index in sorted(bundles, key=lambda index: -bundles[index].get(GPU, 0)):
            units = bundles[index].get(GPU, 0)
            if not devices.fits(units):
                return None
            shares[index] = devices.take(units)
        return shares

    def give_up(
        self, group_id: bytes, attempt: int, indexes: Iterable[int]
    ) -> list[Bundle]:
        """Return what is free in these bundles to the node; return the bundles.

        What still runs in them counts against the node from now on.
        """
        before = self._returned.pop(group_id, 0)
        self._returned[group_id] = max(before, attempt)
        if len(self._returned) > MAX_RETURNED:
            del self._returned[next(iter(self._returned))]
        gone: list[Bundle] = []
        for index in indexes:
            bundle = self.here.get((group_id, index))
            if bundle is not None and bundle.attempt <= attempt:
                del self.here[bundle.key]
                give_back(self.room, bundle.available)
                self.devices.give_back(bundle.devices.free)
                gone.append(bundle)
        return gone

    def learn(self, rows: Iterable[p.GroupRow]) -> None:
        for row in rows:
            known = self.rows.get(row.group_id)
            if known is None or known.version < row.version:
                self.rows.pop(row.group_id, None)
                self.rows[row.group_id] = row
        removed = [id_ for id_, row in self.rows.items() if row.state == p.REMOVED]
        for group_id in removed[:-MAX_REMOVED]:
            del self.rows[group_id]

    def strays(self) -> list[tuple[BundleKey, int]]:
        """Return bundles of groups that were removed or have another place for them,
        each with its attempt."""
        found = []
        for (group_id, index), bundle in self.here.items():
            row = self.rows.get(group_id)
            if row is not None and (
                row.state == p.REMOVED or row.nodes[index] not in (b"", self.node_id)
            ):
                found.append((bundle.key, bundle.attempt))
        return found

    # --- where a request goes ---------------------------------------------------------

    def of(self, request: Request) -> list[Bundle]:
        """Return the bundles of this node that a request may run in, in their order.

        One of this node's own runtimes must wait until the head has said that the
        bundle is the group's; another agent's was told already.
        """
        row, index = self.rows.get(request.group), request.spec.strategy.bundle
        if index >= 0:
            bundle = self.here.get((request.group, index))
            found = [] if bundle is None else [bundle]
        else:
            found = [b for key, b in self.here.items() if key[0] == request.group]
        return [
            bundle
            for bundle in found
            if request.foreign or _is_at(row, bundle.key[1], self.node_id)
        ]

    def elsewhere(self, request: Request) -> list[bytes]:
        """Return the other nodes with bundles for a request; each is first in turn."""
        row = self.rows.get(request.group)
        if row is None or row.state == p.REMOVED:
            return []
        index = request.spec.strategy.bundle
        nodes = {
            node_id: None
            for at, node_id in enumerate(row.nodes)
            if node_id
            and node_id != self.node_id
            and index in (-1, at)
            and fits(request.resources, row.bundles[at])
        }
        self._turn += 1
        first = self._turn % len(nodes) if nodes else 0
        return [*nodes][first:] + [*nodes][:first]

    def how_many(self, request: Request, node_id: bytes) -> int:
        """Return how many requests of a kind the bundles of another node hold."""
        row = self.rows[request.group]
        index = request.spec.strategy.bundle
        places = 0
        for at, vector in enumerate(row.bundles):
            if row.nodes[at] == node_id and index in (-1, at):
                ratios = [
                    vector.get(name, 0) // units
                    for name, units in request.resources.items()
                ]
                places += min(ratios, default=request.count)
        return max(1, min(request.count, places))

    def is_removed(self, group_id: bytes) -> bool:
        row = self.rows.get(group_id)
        return row is not None and row.state == p.REMOVED

    def obstacle(self, request: Request) -> str | None:
        """Return why a request can never be served, "" if its group is unknown."""
        row = self.rows.get(request.group)
        if row is None:
            return ""
        index = request.spec.strategy.bundle
        bundles = row.bundles if index == -1 else row.bundles[index : index + 1]
        if any(fits(request.resources, bundle) for bundle in bundles):
            return None
        return "no bundle of its placement group is large enough"


def _is_at(row: p.GroupRow | None, index: int, node_id: bytes) -> bool:
    return row is not None and row.state != p.REMOVED and row.nodes[index] == node_id
