"""Actors as one node sees them: which of its workers are some, and what callers ask.

Every agent keeps the newest row of each actor, as the head tells them on its stream,
and answers the runtimes of its host from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from sparkray.agent.fleet import DeathRecord, Fleet
from sparkray.agent.members import Member
from sparkray.agent.uplink import Uplink
from sparkray.exceptions import ClusterError
from sparkray.protocol import actors as p
from sparkray.protocol import codec
from sparkray.protocol import messages as m
from sparkray.protocol.messages import Lease

_log = logging.getLogger(__name__)

#: How many rows of dead actors are kept.
MAX_DEAD: Final = 10_000
NEWS_PAUSES_S: Final = (0.0, 0.2, 1.0, 5.0)
LAST_PAUSE_S: Final = 15.0
#: A worker that the head leased for an actor, and that does not become one for so
#: long, is wanted no more: the head has died meanwhile.
UNCLAIMED_S: Final = 30.0


@dataclass(slots=True)
class _Hosted:
    """A worker of this node that is an actor, or about to be."""

    actor_id: bytes
    incarnation: int
    member: Member
    exiting: str = ""  #: why it ends itself


class ActorDesk:
    """Rows for callers, news for the head.

    Args:
        spawn: runs a coroutine beside everything else.
        gpu_ids: the devices that a leased worker has.
        worker_of: the worker of a lease, None if that has ended.
        give_back: ends a lease.
    """

    def __init__(
        self,
        members: dict[bytes, Member],
        fleet: Fleet,
        uplink: Uplink,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        gpu_ids: Callable[[bytes], list[str] | None],
        worker_of: Callable[[bytes], bytes | None],
        give_back: Callable[[bytes], None],
    ) -> None:
        self._worker_of, self._give_back = worker_of, give_back
        self._members, self._fleet = members, fleet
        self._gpu_ids = gpu_ids
        self._uplink, self._spawn = uplink, spawn
        self._rows: dict[bytes, p.ActorRow] = {}
        self._watchers: dict[bytes, list[tuple[Member, m.WatchActor]]] = {}
        self._hosted: dict[bytes, _Hosted] = {}
        self._creators: set[bytes] = set()  #: processes that made actors

    # --- callers ----------------------------------------------------------------------

    def watch(self, member: Member, message: m.WatchActor) -> None:
        row = self._rows.get(message.actor_id)
        if row is not None and row.version > message.version:
            _answer(member, message, row)
        else:
            self._watchers.setdefault(message.actor_id, []).append((member, message))

    def made_by(self, member: Member) -> None:
        """A process asks the head for an actor; the actor ends with it."""
        self._creators.add(member.worker_id)

    def member_gone(self, member: Member) -> None:
        for actor_id, watchers in list(self._watchers.items()):
            left = [watcher for watcher in watchers if watcher[0] is not member]
            if left:
                self._watchers[actor_id] = left
            else:
                del self._watchers[actor_id]
        if member.worker_id in self._creators:
            self._creators.discard(member.worker_id)
            self._spawn(self._tell("OwnerGone", p.OwnerGone(member.worker_id)))

    def learn(self, rows: Iterable[p.ActorRow]) -> None:
        """Take what the head says."""
        for row in rows:
            known = self._rows.get(row.actor_id)
            if known is not None and known.version >= row.version:
                continue
            self._rows.pop(row.actor_id, None)
            self._rows[row.actor_id] = row
            for member, message in self._watchers.pop(row.actor_id, ()):
                _answer(member, message, row)
        if len(self._rows) > MAX_DEAD:
            dead = [id_ for id_, row in self._rows.items() if row.state == p.DEAD]
            for actor_id in dead[: len(self._rows) - MAX_DEAD]:
                del self._rows[actor_id]

    # --- workers that are actors ------------------------------------------------------

    def lent(self, leases: Iterable[Lease]) -> None:
        """The head got workers for actors; it may die before it can tell them so."""
        loop = asyncio.get_running_loop()
        for lease in leases:
            loop.call_later(UNCLAIMED_S, self._end_unclaimed, lease.lease_id)

    def _end_unclaimed(self, lease_id: bytes) -> None:
        worker_id = self._worker_of(lease_id)
        if worker_id is not None and worker_id not in self._hosted:
            _log.warning("the head does not use worker %s any more", worker_id.hex())
            self._give_back(lease_id)

    def strays(self) -> list[bytes]:
        """Return workers that are actors of which the head says that they have ended,
        or live elsewhere: it died before it could end them."""
        return [
            worker_id
            for worker_id, hosted in self._hosted.items()
            if (row := self._rows.get(hosted.actor_id)) is not None
            and (row.state == p.DEAD or row.incarnation > hosted.incarnation)
        ]

    def become(self, request: p.BecomeActor) -> None:
        """Make a leased worker an actor.

        Raises:
            ClusterError: the worker or its lease is gone.
        """
        member = self._members.get(request.worker_id)
        if member is None:
            raise ClusterError(f"worker {request.worker_id.hex()} has ended")
        if request.lease_id and self._worker_of(request.lease_id) != request.worker_id:
            raise ClusterError(f"lease {request.lease_id.hex()} has ended")
        hosted = self._hosted.get(request.worker_id)
        if hosted is not None:
            if (hosted.actor_id, hosted.incarnation) == (
                request.actor_id,
                request.incarnation,
            ):
                return  # asked again
            raise ClusterError(f"worker {request.worker_id.hex()} is another actor")
        self._hosted[request.worker_id] = _Hosted(
            request.actor_id, request.incarnation, member
        )
        gpu_ids = self._gpu_ids(request.worker_id)
        member.channel.send(
            m.BecomeActor(request.incarnation, request.creation, gpu_ids)
        )

    def started(self, member: Member, message: m.ActorStarted) -> None:
        hosted = self._hosted.get(member.worker_id)
        if hosted is None:
            return
        kind = "failed" if message.error else "alive"
        self._news(hosted, kind, message.reason, message.error)

    def exiting(self, member: Member, message: m.ActorExiting) -> None:
        hosted = self._hosted.get(member.worker_id)
        if hosted is not None:
            hosted.exiting = message.reason

    def worker_gone(self, worker_id: bytes) -> None:
        """A worker's process ended; if it was an actor, the head must know."""
        hosted = self._hosted.pop(worker_id, None)
        if hosted is None:
            return
        if hosted.exiting:
            self._news(hosted, "left", hosted.exiting, b"")
        else:
            self._spawn(self._report_death(hosted, worker_id))

    async def _report_death(self, hosted: _Hosted, worker_id: bytes) -> None:
        record: DeathRecord = await self._fleet.death_of(worker_id)
        tail = f"\nits last output:\n{record.log_tail}" if record.log_tail else ""
        self._news(hosted, record.kind, record.reason + tail, b"")

    def _news(self, hosted: _Hosted, kind: str, reason: str, error: bytes) -> None:
        member = hosted.member
        news = p.ActorNews(
            actor_id=hosted.actor_id,
            incarnation=hosted.incarnation,
            kind=kind,
            address=member.address if kind == "alive" else None,
            reason=reason,
            error=error,
            pid=member.pid,
        )
        self._spawn(self._tell("ActorNews", news))

    async def _tell(self, method: str, request: Any) -> None:
        """Tell the head, however long it is away: nobody else can."""
        for pause_s in chain(NEWS_PAUSES_S, repeat(LAST_PAUSE_S)):
            await asyncio.sleep(pause_s)
            try:
                await self._uplink.call(method, request)
                return
            except ClusterError as error:
                _log.info("%s not told yet: %s", method, error)


def _answer(member: Member, message: m.WatchActor, row: p.ActorRow) -> None:
    member.channel.send(m.ActorChanged(message.call, codec.encode(row)))
