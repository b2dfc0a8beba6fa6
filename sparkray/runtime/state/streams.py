"""The items of a streaming task, as its owner sees them.  Pure.

    items arrive (any order of attempts, ascending index) -> ``arrived``
    the task ends -> ``total`` is known
    the consumer takes them one by one -> ``taken``

A retried task sends its items again; the first of an index is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkray.runtime.state.objects import Entry, Waiter


class Stream:
    """One streaming task."""

    __slots__ = (
        "abandoned",
        "arrived",
        "backpressure",
        "completed_id",
        "entries",
        "number",
        "taken",
        "total",
        "waiters",
    )

    def __init__(self, number: int, completed_id: bytes, backpressure: int) -> None:
        self.number = number
        self.completed_id = completed_id  #: of what is ready once the task has ended
        self.backpressure = backpressure
        self.entries: dict[int, Entry] = {}  #: arrived and not yet taken, by index
        self.arrived = 0
        self.taken = 0
        self.total: int | None = None
        self.abandoned = False  #: nobody will take further items
        self.waiters: list[Waiter] = []

    def is_ready(self) -> bool:
        """Can the next item be taken, or is it known that there is none?"""
        return self.taken < self.arrived or self.total is not None

    def is_new(self, index: int) -> bool:
        return index == self.arrived and self.total is None

    def add(self, entry: Entry) -> None:
        self.entries[self.arrived] = entry
        self.arrived += 1

    def finish(self) -> None:
        if self.total is None:
            self.total = self.arrived

    def take(self) -> Entry | None:
        """Return the next item's entry; None if there is none (yet, or ever)."""
        entry = self.entries.pop(self.taken, None)
        if entry is not None:
            self.taken += 1
        return entry
