"""Which leases to ask back when others wait, so that leases rotate.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sparkray.agent.state.bundles import Bundle
from sparkray.agent.state.devices import Share
from sparkray.agent.state.queues import Request, Shape
from sparkray.protocol.actors import ACTOR
from sparkray.resources import Vector, fits, give_back, take

#: A lease that was asked back and has not come by then: another is asked back.
ASK_NEXT_AFTER_S: Final = 0.5
#: A process that is to end keeps its GPUs until it has, but no longer than this: others
#: may need its objects for long.
LEFT_WITHIN_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Held:
    """A lease of a worker of this node."""

    lease_id: bytes
    worker_id: bytes
    holder: bytes
    shape: Shape
    resources: Vector
    since: float
    bundle: Bundle | None = None  #: whose resources it has, not the node's own
    gpus: Share = field(default_factory=dict)
    blocked: bool = False
    asked_at: float | None = None
    left_at: float = 0.0  #: when it ended, if its GPUs stay with its process


class Rotation:
    """One look at who holds what.

    Args:
        held: all leases.
        available: what is free.
        min_hold_s: how long a lease is left alone.
        now: the time.
    """

    def __init__(
        self, held: Iterable[Held], available: Vector, min_hold_s: float, now: float
    ) -> None:
        running = [
            lease
            for lease in held
            if not lease.blocked and lease.shape.strategy[0] != ACTOR
        ]
        self._by_shape = Counter(lease.shape for lease in running)
        self._by_job = Counter(lease.shape.job_id for lease in running)
        self._now = now
        self._free = [
            lease
            for lease in running
            if lease.asked_at is None and now - lease.since >= min_hold_s
        ]
        self._room = dict(available)
        for lease in running:
            if lease.asked_at is not None and now - lease.asked_at < ASK_NEXT_AFTER_S:
                give_back(self._room, lease.resources)

    def choose(self, waiting: Sequence[Request]) -> list[Held]:
        """Return what to ask back, at most one lease for each request that waits."""
        chosen: list[Held] = []
        for request in waiting:
            if request.capped_since is None and fits(request.resources, self._room):
                take(self._room, request.resources)  # what was asked for will do
                continue
            victim = self._victim(request)
            if victim is not None:
                self._free.remove(victim)
                self._by_shape[victim.shape] -= 1
                self._by_job[victim.shape.job_id] -= 1
                victim.asked_at = self._now
                chosen.append(victim)
        return chosen

    def _victim(self, request: Request) -> Held | None:
        """Return the oldest lease of whoever has most, among those who should give."""
        fair = [lease for lease in self._free if self._should_give(lease, request)]
        return max(fair, key=self._score, default=None)

    def _score(self, lease: Held) -> tuple[int, int, float]:
        shape = lease.shape
        return self._by_job[shape.job_id], self._by_shape[shape], -lease.since

    def _should_give(self, lease: Held, request: Request) -> bool:
        """Tell if a lease should go to a request.

        Not if it would only go back and forth: who waits has none of its kind yet, or
        at least two less than who gives.
        """
        theirs, mine = lease.shape, request.shape
        if theirs == mine and lease.holder == request.holder:
            return False
        if request.capped_since is None and not any(
            name in lease.resources for name in request.resources
        ):
            return False
        if theirs.job_id != mine.job_id:
            have = self._by_job[mine.job_id]
            return not have or self._by_job[theirs.job_id] >= have + 2
        if mine.depth < theirs.depth:
            return False  # the deeper would be served first again
        have = self._by_shape[mine]
        return theirs == mine or not have or self._by_shape[theirs] >= have + 2
