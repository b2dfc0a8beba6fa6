"""What the parts of one runtime share: its lock, tables, connections and identity."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sparkray.config import Settings
from sparkray.protocol.messages import (
    Address,
    Attached,
    FreeObjects,
    JobConfig,
    ObjectSource,
    RemoveBorrower,
    UnpinObjects,
)
from sparkray.runtime.agent_link import AgentLink
from sparkray.runtime.peers import Peers
from sparkray.runtime.state.actor import ActorClient
from sparkray.runtime.state.objects import INLINE, STORED, Entry, ObjectTable
from sparkray.transport.channel import Channel, IOLoop

#: How long dropped refs may wait before they are looked at.
DRAIN_DELAY_S = 0.005


class SendingLock:
    """A lock for short sections that also queue messages.

    It may be taken again by the thread that has it: an exception that is unpickled
    under it may carry refs, which are counted under it too.

    Those messages are sent when the lock has been released: a system call under it
    would hold up every other thread.
    """

    __slots__ = ("_acquire", "_release", "_unsent", "is_held")

    def __init__(self) -> None:
        lock = threading.RLock()
        #: Tells whether this thread has it: then it must not wait for messages.
        self.is_held: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
        self._acquire, self._release = lock.acquire, lock.release
        self._unsent: list[Channel] = []

    def queue(self, channel: Channel, data: bytes) -> None:
        """Send framed bytes once the lock is free.  The lock is held."""
        channel.queue(data)
        self._unsent.append(channel)

    def __enter__(self) -> None:
        self._acquire()

    def __exit__(self, *exc_info: object) -> None:
        unsent = self._unsent
        if not unsent:
            self._release()
            return
        self._unsent = []
        try:
            self._release()
            for channel in unsent:
                channel.transmit()
        except BaseException:  # Ctrl-C: what was promised is sent all the same
            for channel in unsent:
                channel.transmit()
            raise


def _not_blocking() -> AbstractContextManager[None]:
    return contextlib.nullcontext()


class Shared:
    """State that several parts of a runtime use.

    ``lock`` guards `table`, the submitter's tasks and queues, and every `Entry` and
    `Task` reachable from them.  Sending on a channel is allowed under it, waiting is
    not.
    """

    def __init__(self, loop: IOLoop, settings: Settings) -> None:
        self.loop = loop
        self.settings = settings
        self.lock = SendingLock()
        self.table = ObjectTable()
        self.table.lineage.limit_bytes = settings.lineage_max_bytes
        self.agent: AgentLink
        self.peers: Peers
        self.attached: Attached
        self.address: Address
        self.prefix = b""  #: our worker id, with which the ids of our objects begin
        self.config: JobConfig
        self.runtime_env = ""  #: that of this process, which its tasks inherit
        self.closed = ""  #: why the runtime cannot be used any more
        self.numbers = itertools.count(1)  #: of tasks and `put` objects
        #: Entered around a wait of the caller (a worker lends its CPU on).
        self.blocking: Callable[[], AbstractContextManager[None]] = _not_blocking
        #: Told when nothing holds an actor that this process made.
        self.on_actor_unneeded: Callable[[ActorClient], None] = lambda client: None
        #: Told when the channel to an actor's process ends.
        self.on_actor_lost: Callable[[Any], None] = lambda worker: None
        #: Told when an argument of an actor's constructor failed, with its error.
        self.on_actor_unmade: Callable[[ActorClient, bytes], None]
        self._dropped: collections.deque[bytes] = collections.deque()
        self._unmapped: collections.deque[bytes] = collections.deque()
        self._drain_due = False

    def here(self) -> ObjectSource:
        """Return this node's store, as one that has a copy."""
        return ObjectSource(self.address.node_id, self.attached.flight)

    def new_object_id(self) -> tuple[int, bytes]:
        number = next(self.numbers)
        return number, self.prefix + number.to_bytes(8, "big") + b"\0\0\0\0"

    # From `__del__` and finalizers, in any thread, under any lock: these only note.

    def note_dropped(self, object_id: bytes) -> None:
        self._dropped.append(object_id)
        if not self._drain_due:
            self._drain_due = True
            self.loop.post(self._drain_soon)

    def note_unmapped(self, object_id: bytes) -> None:
        self._unmapped.append(object_id)
        if not self._drain_due:
            self._drain_due = True
            self.loop.post(self._drain_soon)

    def _drain_soon(self) -> None:
        self.loop.call_later(DRAIN_DELAY_S, self.drain)

    def drain(self) -> None:
        """Act on the refs and mappings that went away.  Any thread, lock not held."""
        self._drain_due = False
        with self.lock:
            self.drain_locked()

    def drain_locked(self) -> None:
        dropped, table = self._dropped, self.table
        while dropped:
            table.drop_local(dropped.popleft())
        self.settle_releases()
        if self._unmapped:
            gone = []
            while self._unmapped:
                gone.append(self._unmapped.popleft())
            self.agent.send(UnpinObjects(gone))

    def settle_releases(self) -> None:
        """Tell stores and owners about objects that ended.  The lock is held."""
        table = self.table
        while table.freed:  # the end of an actor frees its constructor's arguments
            freed, table.freed = table.freed, []
            self._free(freed)
        if table.returned:
            returned, table.returned = table.returned, []
            for entry in returned:
                if entry.registered and entry.owner is not None:
                    self.peers.send(
                        entry.owner, RemoveBorrower(entry.id, entry.registered)
                    )

    def _free(self, freed: list[Entry]) -> None:
        stored = [entry for entry in freed if entry.state == STORED]
        for entry in freed:
            entry.value = b""
            if entry.task.__class__ is ActorClient:
                self.on_actor_unneeded(entry.task)
        if stored:
            here = self.address.node_id
            nodes = {s.node_id for e in stored for s in e.sources or ()} - {here}
            self.agent.send(FreeObjects([entry.id for entry in stored], sorted(nodes)))

    def own_entry(self, object_id: bytes, state: int, value: bytes) -> Entry:
        """Add an owned entry that is settled already.  The lock is held."""
        entry = self.table.entries[object_id] = Entry(object_id)
        entry.state, entry.value = state, value
        entry.size = len(value) if state == INLINE else 0
        return entry
