"""The objects this process knows: those it owns and those it borrows.  Pure.

An **owned** object is kept while anything holds it:

    local     `ObjectRef`s in this process
    pins      tasks in flight that use it, and objects here that contain a ref to it
    borrowers other processes, by worker id, each with a count

A borrower's count is the number of AddBorrower minus RemoveBorrower messages for it.
Those two may come on different connections, thus in either order, so a count may go
below zero for a moment; the object is free only when every count is exactly zero.

A stored object can lose its copies; `state.lineage` knows which task to run again, and
keeps what was freed if that needs it.

A **borrowed** object is held by local refs and pins alike; when the last goes, the
owner is told to take back all counts made on our behalf (``registered``).  One with no
count of its own is covered by whoever sent it: the sender keeps it until the task that
brought it has ended, and the answer to that task names what we go on to hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from sparkray.protocol.messages import Address, ObjectSource
from sparkray.runtime.state.lineage import Lineage

PENDING: Final = 0  #: the value does not exist yet, or its owner has not told us
INLINE: Final = 1  #: ``value`` holds the serialized value
STORED: Final = 2  #: the value lies in the stores of ``sources``
FAILED: Final = 3  #: ``value`` holds a serialized error

STATE_NAMES: Final = ("pending", "inline", "stored", "failed")


class Waiter(Protocol):
    """Told when an entry is no longer pending; must not block or take a lock."""

    def notify(self, entry: Entry) -> None: ...


class Entry(msgspec.Struct, eq=False, gc=False):
    """One object.  A struct made in C, unknown to the garbage collector: there may be
    millions.  The one cycle, with its task, is broken when the task ends."""

    id: bytes
    owner: Address | None = None  #: None: this process
    state: int = PENDING
    value: bytes = b""
    size: int = 0
    sources: list[ObjectSource] | None = None
    local: int = 0
    pins: int = 0
    registered: int = 0  #: borrowed: counts that the owner has for us
    asked: bool = False  #: borrowed: the owner was asked for the value
    borrowers: dict[bytes, int] | None = None
    contains: list[Any] | None = None  #: entries whose refs are in the value
    waiters: list[Any] | None = None
    task: Any = None  #: the task that makes it, while that is under way
    made_by: Any = None  #: stored: the `Task` to run again, or why there is none
    kept: bool = False  #: what is known of it stays good when its owner is gone
    dependents: int = 0  #: tasks that may run again and have it as an argument
    mapping: Any = None  #: weak ref to the mapped segment, while one is mapped

    def settle(self, state: int, value: bytes) -> None:
        """Give the entry its final state and tell who waits."""
        self.value = value  # first: readers look at the state without the lock
        self.state = state
        waiters = self.waiters
        if waiters is not None:
            self.waiters = None
            for waiter in waiters:
                waiter.notify(self)


class ObjectTable:
    """All entries of a runtime.  The caller holds the runtime's lock.

    Methods that can end an object append it to ``freed`` (owned) or ``returned``
    (borrowed); the caller tells the store, or the owner, and empties the lists.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.freed: list[Entry] = []
        self.returned: list[Entry] = []
        #: Borrowed entries that no count covers yet, to be named in the answer to the
        #: task that brought them; its id, or b"".
        self.uncovered: dict[bytes, tuple[Entry, bytes]] = {}
        self.lineage = Lineage(self.entries)

    def borrow(self, object_id: bytes, owner: Address, task_id: bytes = b"") -> Entry:
        """Return the entry of an object of another process, made if need be.

        Args:
            task_id: the task that runs now, and has brought it.
        """
        entry = self.entries.get(object_id)
        if entry is None:
            entry = self.entries[object_id] = Entry(object_id, owner)
            self.uncovered[object_id] = entry, task_id
        return entry

    def cover(self, entry: Entry) -> None:
        """Note one more count that the owner has for us."""
        entry.registered += 1
        self.uncovered.pop(entry.id, None)

    def drop_local(self, object_id: bytes) -> None:
        entry = self.entries.get(object_id)
        if entry is not None and entry.local:
            entry.local -= 1
            if not entry.local and not entry.pins:
                self.release(entry)

    def unpin(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.pins -= 1
            if not entry.local and not entry.pins:
                self.release(entry)

    def add_borrower(self, object_id: bytes, borrower: bytes) -> Entry | None:
        """Count a borrower of an owned object; None if the object is gone already."""
        entry = self.entries.get(object_id)
        if entry is None or entry.owner is not None:
            return None
        self._count(entry, borrower, 1)
        return entry

    def remove_borrower(self, object_id: bytes, borrower: bytes, count: int) -> None:
        entry = self.entries.get(object_id)
        if entry is not None and entry.owner is None:
            self._count(entry, borrower, -count)
            if not entry.local and not entry.pins:
                self.release(entry)

    def borrower_died(self, borrower: bytes) -> None:
        holding = [
            entry
            for entry in self.entries.values()
            if entry.borrowers and borrower in entry.borrowers
        ]
        for entry in holding:
            assert entry.borrowers is not None
            del entry.borrowers[borrower]
            if not entry.local and not entry.pins:
                self.release(entry)

    def release(self, entry: Entry) -> None:
        """End the entry if nothing holds it, and what only it held."""
        if entry.local or entry.pins or entry.borrowers:
            return
        if self.entries.pop(entry.id, None) is None:
            return
        if entry.owner is None:
            self.freed.append(entry)
            if entry.made_by is not None and not entry.dependents:
                self.lineage.forget(entry)
        else:
            self.uncovered.pop(entry.id, None)
            self.returned.append(entry)
        contains, entry.contains = entry.contains, None
        if contains:
            self.unpin(contains)

    def is_held(self, entry: Entry) -> bool:
        return entry.id in self.entries

    def is_needed(self) -> bool:
        """Does any other process hold an object that this one owns?"""
        entries = list(self.entries.values())
        return any(entry.borrowers for entry in entries if entry.owner is None)

    def take_uncovered(self, task_id: bytes = b"") -> list[Entry]:
        """Return what we hold without a count of our own; the sender will count it.

        Args:
            task_id: what other tasks have brought, which still run, is left out.
        """
        held = [
            entry
            for entry, brought_by in self.uncovered.values()
            if brought_by in (task_id, b"") and (entry.local or entry.pins)
        ]
        for entry in held:
            self.cover(entry)
        return held

    def _count(self, entry: Entry, borrower: bytes, by: int) -> None:
        counts = entry.borrowers
        if counts is None:
            counts = entry.borrowers = {}
        count = counts.get(borrower, 0) + by
        if count:
            counts[borrower] = count
        else:
            counts.pop(borrower, None)
