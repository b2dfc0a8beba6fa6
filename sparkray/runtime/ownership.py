"""The owner-borrower protocol: who holds a ref, who tells whom, and what is its value.

    a ref goes out with a task   the sender keeps it until the answer, which names what
                                 the worker goes on to hold; the sender counts that
    a ref comes in a value       whoever sends the value counts the receiver first
    a borrower lets go           RemoveBorrower, for all counts made on its behalf
    a borrower wants the value   GetObject; the owner answers once it is there
    either process dies          its channel ends, and the other side acts on that

The table itself is pure: `runtime.state.objects`.  All methods want the runtime's lock
held, except the ``on_...`` handlers, which take it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from sparkray.exceptions import ObjectLostError, OwnerDiedError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    AddBorrower,
    Address,
    CopyMade,
    FreeObjects,
    GetObject,
    KeepObjects,
    ObjectReady,
    ObjectSource,
    RemoveBorrower,
)
from sparkray.runtime.context import running
from sparkray.runtime.refs import Bequest, ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import (
    FAILED,
    INLINE,
    PENDING,
    STORED,
    Entry,
)
from sparkray.store.serialize import serialize
from sparkray.transport.channel import Channel

log = logging.getLogger(__name__)


class _Asker:
    """A borrower that asked for an object that does not exist yet."""

    __slots__ = ("borrower", "ownership")

    def __init__(self, ownership: Ownership, borrower: Address) -> None:
        self.ownership, self.borrower = ownership, borrower

    def notify(self, entry: Entry) -> None:
        self.ownership.answer(self.borrower, entry)


#: Why the object of an old ref cannot be had.
ENDED_SESSION: Final = "it belongs to a session of sparkray that has ended"


class Ownership:
    """This process as owner and as borrower.

    Args:
        forked_from: a process whose refs cannot be used here; 0: none.
        readopts: borrow anew what refs of an earlier session name.  A Spark worker
            keeps those of a broadcast variable while it goes from job to job.
    """

    def __init__(
        self,
        shared: Shared,
        forked_from: int = 0,
        *,
        readopts: bool = False,
        bequeaths: bool = False,
    ) -> None:
        self._shared = shared
        self._forked_from = forked_from
        self._readopts = readopts
        self._table = shared.table
        #: Whether refs from here go with what is known of their objects: not from
        #: drivers, which outlive all others, nor from actors, which take theirs along.
        self.bequeaths = bequeaths
        self.settle: Callable[[], None]  #: the submitter's: queue what became ready
        #: See `Recovery.copies_lost`.
        self.copies_lost: Callable[
            [Entry, Collection[bytes], str], ObjectLostError | None
        ]
        #: See `Recovery.bring_here`.
        self.bring_here: Callable[
            [Entry, Collection[bytes], Address, Callable[[str], None]], bool
        ]

    def entry_of(self, ref: ObjectRef) -> Entry:
        """Return the entry of a ref of this session.

        Raises:
            ObjectLostError: the ref is of an ended session, or of a parent process.
        """
        entry = self._table.entries.get(ref._id)
        if entry is None and self._readopts and ref._owner is not None:
            entry = self.borrow(ref._id, ref._owner)
            entry.local += 1
        if entry is None:
            reason = ENDED_SESSION
            if self._forked_from:
                reason = (
                    f"this process was forked from process {self._forked_from}, and a"
                    " ref cannot be taken along: get the value"
                    " before the fork, or make the object after it"
                )
            raise ObjectLostError(ref.hex(), reason)
        return entry

    def entries_of(self, refs: Sequence[ObjectRef]) -> list[Entry]:
        known = self._table.entries
        try:
            return [known[ref._id] for ref in refs]
        except KeyError:
            return [self.entry_of(ref) for ref in refs]  # says which

    def nodes_of(self, ref: ObjectRef) -> list[bytes]:
        """Return the nodes that have the object in their store, as far as known."""
        return [source.node_id for source in self.entry_of(ref).sources or ()]

    def borrow(self, object_id: bytes, owner: Address) -> Entry:
        """Return the entry of an object of another process, made if need be: then it
        came with the task that this thread or coroutine runs."""
        task = running.task
        task_id = b"" if task is None else task.task_id
        return self._table.borrow(object_id, owner, task_id)

    def adopt(self, object_id: bytes, owner: Address) -> None:
        """Count a ref that was just unpickled here."""
        entry = self._table.entries.get(object_id)
        if entry is None:
            if owner.worker_id == self._shared.address.worker_id:
                return  # freed meanwhile; using the ref says so
            entry = self.borrow(object_id, owner)
        entry.local += 1

    # --- what outlives its owner ---

    def bequest_of(self, entry: Entry) -> Bequest:
        """Return what whoever gets a ref has to know to read it without its owner.

        Nothing where that is not enough: the object does not exist yet, is on other
        nodes only, or holds refs itself.  Copies are kept from now on until the owner
        frees them, or else the job ends.
        """
        mine = entry.owner is None
        if not (self.bequeaths if mine else entry.kept):
            return ()
        if entry.contains or entry.state not in (INLINE, STORED):
            return ()
        if entry.state == INLINE:
            return entry.value, entry.size, []
        stores = entry.sources or []
        if mine:
            stores = stores[:1]  # the original; what others have may be dropped
            if not stores or stores[0].node_id != self._shared.address.node_id:
                return ()
            if not entry.kept:
                self._shared.agent.send(KeepObjects([entry.id]))
                entry.kept = True
        return None, entry.size, [(s.node_id, s.flight) for s in stores]

    def inherit(
        self,
        object_id: bytes,
        value: bytes | None,
        size: int,
        stores: list[tuple[bytes, str]],
    ) -> None:
        """A ref came with what is known of its object: there is nothing to ask."""
        entry = self._table.entries.get(object_id)
        if entry is None or entry.owner is None:
            return
        if entry.state != PENDING:
            entry.kept = entry.kept or (entry.state == STORED and value is None)
            return
        entry.kept, entry.size = True, size
        if value is not None:
            entry.settle(INLINE, value)
        else:
            entry.sources = [ObjectSource(*store) for store in stores]
            entry.settle(STORED, b"")
        self.settle()

    def take_contained(self, contains: Sequence[tuple[bytes, Address]]) -> list[Entry]:
        """Hold the objects whose refs are inside a value that just came.

        Each was counted for us at its owner by whoever sent the value.
        """
        own = self._shared.address.worker_id
        held: list[Entry] = []
        for object_id, owner in contains:
            entry = self._table.entries.get(object_id)
            if owner.worker_id != own:
                if entry is None:
                    entry = self._table.borrow(object_id, owner)
                self._table.cover(entry)
            if entry is not None:
                entry.pins += 1
                held.append(entry)
        return held

    def give_contained(
        self, entries: Sequence[Entry], receiver: Address
    ) -> list[tuple[bytes, Address]]:
        """Count the receiver of a value for each ref inside it; return what to tell."""
        own = self._shared.address
        told: list[tuple[bytes, Address]] = []
        for entry in entries:
            owner = entry.owner or own
            told.append((entry.id, owner))
            if owner.worker_id == receiver.worker_id:
                continue
            if entry.owner is None:
                self.add_borrower(entry.id, receiver)
            else:
                self._shared.peers.send(entry.owner, AddBorrower(entry.id, receiver))
        return told

    def add_borrower(self, object_id: bytes, borrower: Address) -> None:
        if borrower.worker_id == self._shared.address.worker_id:
            return
        if self._table.add_borrower(object_id, borrower.worker_id) is None:
            return
        try:
            self._shared.peers.connect(
                borrower
            )  # its end tells of the borrower's death
        except OSError as error:
            log.debug("borrower %s is gone: %s", borrower.worker_id.hex(), error)
            self._table.borrower_died(borrower.worker_id)

    def register_uncovered(self, task_id: bytes = b"") -> None:
        """Count ourselves at the owners of what came to an actor's constructor, or with
        a task whose caller is gone: no answer will do it."""
        for entry in self._table.take_uncovered(task_id):
            if entry.owner is not None:
                message = AddBorrower(entry.id, self._shared.address)
                self._shared.peers.send(entry.owner, message)

    # --- asking and answering ---

    def ask_owner(self, entry: Entry) -> None:
        """Ask for a borrowed object's value, once."""
        if entry.asked or entry.owner is None or entry.state != PENDING:
            return
        entry.asked = True
        try:
            channel = self._shared.peers.connect(entry.owner)
        except OSError as error:
            entry.settle(FAILED, _owner_died(entry, str(error)))
            return
        channel.send(frame(encode(GetObject(entry.id))))

    def ask_again(self, entry: Entry, tried: Collection[bytes], reason: str) -> None:
        """The copies of a borrowed object that we know of cannot be read."""
        assert entry.owner is not None
        entry.state, entry.sources, entry.asked = PENDING, None, True
        contains, entry.contains = entry.contains, None
        if contains:  # they come again with the answer
            self._table.unpin(contains)
        message = GetObject(entry.id, list(tried), reason)
        try:
            channel = self._shared.peers.connect(entry.owner)
        except OSError as error:
            entry.settle(FAILED, _owner_died(entry, str(error)))
            return
        channel.send(frame(encode(message)))

    def answer(
        self, borrower: Address, entry: Entry, tried: Sequence[bytes] = ()
    ) -> None:
        """Tell a borrower of an object that is there, or failed.

        Args:
            tried: nodes whose copies it cannot read.
        """
        contains = self.give_contained(entry.contains or (), borrower)
        failed = entry.state == FAILED
        ready = ObjectReady(
            object_id=entry.id,
            value=entry.value if entry.state == INLINE else None,
            size_bytes=entry.size,
            sources=[s for s in entry.sources or () if s.node_id not in tried],
            error=entry.value if failed else b"",
            contains=contains,
        )
        self._shared.peers.send(borrower, ready)

    def on_get(self, channel: Channel, messages: Sequence[GetObject]) -> None:
        with self._shared.lock:
            for message in messages:
                self._get(channel, message)

    def _get(self, channel: Channel, message: GetObject) -> None:
        borrower: Address = channel.peer.address
        entry = self._table.entries.get(message.object_id)
        if entry is None:
            channel.send(frame(encode(_freed(message.object_id))))
            return
        if message.reason and entry.owner is None:
            known = entry

            def brought(why: str) -> None:
                reason = (
                    f"{message.reason}; its owner: {why}" if why else message.reason
                )
                self._say(channel, known, message.tried, reason)

            if self.bring_here(entry, message.tried, borrower, brought):
                return
        self._say(channel, entry, message.tried, message.reason)

    def _say(
        self, channel: Channel, entry: Entry, tried: Sequence[bytes], reason: str
    ) -> None:
        """Answer a borrower now, or when the object is there."""
        borrower: Address = channel.peer.address
        lost = None
        if reason and entry.owner is None:
            lost = self.copies_lost(entry, tried, reason)
        if lost is not None:
            channel.send(frame(encode(_failed(entry.id, lost))))
        elif entry.state == PENDING:
            if entry.waiters is None:
                entry.waiters = []
            entry.waiters.append(_Asker(self, borrower))
            self.ask_owner(entry)
        else:
            self.answer(borrower, entry, tried)

    def on_ready(self, channel: Channel, messages: Sequence[ObjectReady]) -> None:
        with self._shared.lock:
            for message in messages:
                self._take_answer(message)
            self.settle()

    def _take_answer(self, message: ObjectReady) -> None:
        entry = self._table.entries.get(message.object_id)
        contained = self.take_contained(message.contains)
        if entry is None or entry.state != PENDING:
            self._table.unpin(contained)
            return
        entry.contains = contained or None
        entry.size = message.size_bytes
        if message.error:
            entry.settle(FAILED, message.error)
        elif message.value is not None:
            entry.settle(INLINE, message.value)
        else:
            entry.sources = message.sources
            entry.settle(STORED, b"")

    def on_add(self, channel: Channel, messages: Sequence[AddBorrower]) -> None:
        with self._shared.lock:
            for message in messages:
                self.add_borrower(message.object_id, message.borrower)

    def on_remove(self, channel: Channel, messages: Sequence[RemoveBorrower]) -> None:
        borrower: bytes = channel.peer.address.worker_id
        with self._shared.lock:
            for message in messages:
                self._table.remove_borrower(message.object_id, borrower, message.count)
            self._shared.settle_releases()

    # --- copies ---

    def copy_made(self, entry: Entry, source: ObjectSource) -> None:
        """This node has a copy now; the owner must know it to free it one day."""
        entry.sources = [*(entry.sources or ()), source]
        if entry.owner is not None:
            self._shared.peers.send(entry.owner, CopyMade(entry.id, source))
            if entry.kept:  # the owner may be gone
                self._shared.agent.send(KeepObjects([entry.id]))

    def on_copy(self, channel: Channel, messages: Sequence[CopyMade]) -> None:
        with self._shared.lock:
            for message in messages:
                entry = self._table.entries.get(message.object_id)
                node = message.source.node_id
                if entry is None:  # freed while the copy was made
                    self._shared.agent.send(FreeObjects([message.object_id], [node]))
                elif all(s.node_id != node for s in entry.sources or ()):
                    entry.sources = [*(entry.sources or ()), message.source]

    # --- deaths ---

    def fail_pending(self, error: BaseException) -> None:
        """No answer will come any more: fail every object that is not there yet."""
        failed = serialize(error).to_bytes()
        for entry in list(self._table.entries.values()):
            if entry.state == PENDING:
                entry.settle(FAILED, failed)

    def process_lost(self, worker_id: bytes, reason: str) -> None:
        """A process that we had a channel to is gone: as borrower and as owner."""
        self._table.borrower_died(worker_id)
        for entry in list(self._table.entries.values()):
            if entry.owner is None or entry.owner.worker_id != worker_id:
                continue
            lost = entry.state == STORED and not entry.kept
            if lost or (entry.state == PENDING and entry.asked):
                entry.settle(FAILED, _owner_died(entry, reason))
        self.settle()


def _owner_died(entry: Entry, reason: str) -> bytes:
    error = OwnerDiedError(
        entry.id.hex(),
        f"the process that owned it has ended ({reason}); keep the ref in the process"
        " that made it, or return the value instead of the ref",
    )
    return serialize(error).to_bytes()


def _freed(object_id: bytes) -> ObjectReady:
    error = ObjectLostError(object_id.hex(), "its owner has freed it already")
    return _failed(object_id, error)


def _failed(object_id: bytes, error: ObjectLostError) -> ObjectReady:
    return ObjectReady(object_id, None, 0, [], serialize(error).to_bytes(), [])
