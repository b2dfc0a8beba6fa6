"""Room that placement groups wait for on one node.  Pure.

A group that fits only once leases have come back would never get its turn beside a
stream of tasks.  So for a while the head has its room claimed: what comes free is kept
for it, and leases are asked back until there is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sparkray.agent.state.bundles import Bundles
from sparkray.agent.state.events import AskBack, Claimed, Reserved
from sparkray.agent.state.rotation import Held
from sparkray.protocol.actors import ACTOR
from sparkray.resources import GPU, Vector, give_back, take, total


@dataclass(slots=True)
class Claims:
    """All claims on this node.

    Args:
        bundles: where what is claimed gets reserved.
    """

    bundles: Bundles
    _by_group: dict[bytes, Claimed] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_group)

    def add(self, claim: Claimed) -> None:
        self._by_group[claim.group_id] = claim

    def drop(self, group_id: bytes) -> None:
        self._by_group.pop(group_id, None)

    def serve(self) -> list[Reserved]:
        """Reserve what fits now."""
        served = [
            claim
            for claim in self._by_group.values()
            if self.bundles.reserve(claim.group_id, claim.attempt, claim.bundles)
        ]
        for claim in served:
            self.drop(claim.group_id)
        return [Reserved(claim.group_id, claim.attempt) for claim in served]

    def attempt(self, group_id: bytes) -> int:
        """Return the attempt that a group's claim belongs to, 0 without a claim."""
        claim = self._by_group.get(group_id)
        return 0 if claim is None else claim.attempt

    def hold_back(self, room: Vector) -> None:
        """Take what is claimed from the room that requests see.

        Parts of several GPUs are no whole one: of what is free, the largest amount
        counts, so that no request breaks into devices that come free one by one.
        """
        claimed = total(
            vector
            for claim in self._by_group.values()
            for vector in claim.bundles.values()
        )
        if GPU in claimed:
            room[GPU] = self.bundles.devices.largest()
        take(room, claimed)

    def ask_back(
        self, held: Iterable[Held], available: Vector, min_hold_s: float, now: float
    ) -> list[AskBack]:
        """Ask for the oldest leases, as many as it takes."""
        if not self._by_group:
            return []
        room, asked = dict(available), []
        self.hold_back(room)
        leases = sorted(_lent(held), key=lambda lease: lease.since)
        for lease in leases:
            if lease.asked_at is not None:
                give_back(room, lease.resources)
        for lease in leases:
            useful = any(room.get(name, 0) < 0 for name in lease.resources)
            known = lease.asked_at is not None or now - lease.since < min_hold_s
            if useful and not known:
                lease.asked_at = now
                give_back(room, lease.resources)
                asked.append(AskBack(lease.worker_id))
        return asked


def lent(held: Iterable[Held]) -> Vector:
    """Return what would be free if all leases came back that may be asked back."""
    return total(lease.resources for lease in _lent(held))


def _lent(held: Iterable[Held]) -> Iterator[Held]:
    for lease in held:
        is_actor = lease.shape.strategy[0] == ACTOR
        if not (lease.blocked or is_actor or lease.bundle is not None):
            yield lease
