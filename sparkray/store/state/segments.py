"""The segments of one store: which are in use, which are warm.  Pure.

A segment is *live* while an object refers to it or somebody holds it, then *warm*: its
memory is set aside and may be given to the next object.  A segment whose last user did
not say good-bye (a connection broke) is *tainted*: it is never reused, because a
process that is still there might read or write it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sparkray.store.state.actions import Action, Remove

PAGE_BYTES: Final = 4096
#: A warm segment may be larger than what is asked for by a quarter, or by this much.
_SLACK_BYTES: Final = 64 * 1024


def capacity_for(size_bytes: int) -> int:
    """Return the size of a segment for an object: whole pages."""
    return max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES


class Segment:
    """One file.  ``holders`` are clients, and names of work that reads or writes it.

    With a ``file`` it is no memory, but a spilled object that is read where it is.
    """

    __slots__ = (
        "capacity_bytes",
        "file",
        "holders",
        "number",
        "object_id",
        "tainted",
        "writer",
    )

    def __init__(self, number: int, capacity_bytes: int, file: int = 0) -> None:
        self.number = number
        self.capacity_bytes = capacity_bytes
        self.file = file
        self.object_id: bytes | None = None
        self.holders: set[Hashable] = set()
        self.tainted = False
        self.writer: Hashable = None  #: who wrote last, and may have it mapped


class SegmentTable:
    """All segments of a store.

    Args:
        limit_bytes: live and warm segments together never exceed this.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.live_bytes = 0
        self.warm_bytes = 0
        self._last_number = 0
        self._warm: OrderedDict[int, Segment] = OrderedDict()  # longest warm first
        self._idle: set[int] = set()

    def would_fit(self, capacity_bytes: int) -> bool:
        """Whether there is room once every warm segment is given up."""
        return self.live_bytes + capacity_bytes <= self.limit_bytes

    def take(
        self, capacity_bytes: int, writer: Hashable
    ) -> tuple[Segment, bool, list[Action]]:
        """Return a live segment, whether it is a new one, and what to remove for it.

        Only when `would_fit` says so.
        """
        segment = self._best_warm(capacity_bytes, writer)
        if segment is not None:
            del self._warm[segment.number]
            self.warm_bytes -= segment.capacity_bytes
            self.live_bytes += segment.capacity_bytes
            segment.writer = writer
            return segment, False, []
        removed = self._make_room(capacity_bytes)
        self._last_number += 1
        segment = Segment(self._last_number, capacity_bytes)
        self.live_bytes += capacity_bytes
        segment.writer = writer
        return segment, True, removed

    def settle(self, segment: Segment) -> list[Action]:
        """Make a segment warm, or remove it, if nothing uses it any more."""
        if segment.object_id is not None or segment.holders:
            return []
        self.live_bytes -= segment.capacity_bytes
        if segment.tainted:
            return [Remove(segment.number, segment.capacity_bytes, unmapped=False)]
        self._warm[segment.number] = segment
        self.warm_bytes += segment.capacity_bytes
        return []

    def discard(self, segment: Segment) -> list[Action]:
        """Remove a segment whose file could not be made."""
        segment.object_id = None
        segment.holders.clear()
        self.live_bytes -= segment.capacity_bytes
        return [Remove(segment.number, segment.capacity_bytes, unmapped=False)]

    def remove_idle(self) -> list[Action]:
        """Remove the segments that were warm at the last call and are so still."""
        actions: list[Action] = []
        for number in self._idle & self._warm.keys():
            actions.append(self._drop(number))
        self._idle = set(self._warm)
        return actions

    def _best_warm(self, capacity_bytes: int, writer: Hashable) -> Segment | None:
        """Return the best fit; one that its writer still has mapped is better."""
        most = capacity_bytes + max(_SLACK_BYTES, capacity_bytes // 4)
        best: Segment | None = None
        for segment in self._warm.values():
            if not capacity_bytes <= segment.capacity_bytes <= most:
                continue
            if best is None or _rank(segment, writer) <= _rank(best, writer):
                best = segment
        return best

    def _make_room(self, capacity_bytes: int) -> list[Action]:
        actions: list[Action] = []
        while (
            self.live_bytes + self.warm_bytes + capacity_bytes > self.limit_bytes
            and self._warm
        ):
            actions.append(self._drop(next(iter(self._warm))))
        return actions

    def _drop(self, number: int) -> Action:
        self._idle.discard(number)
        capacity = self._warm.pop(number).capacity_bytes
        self.warm_bytes -= capacity
        return Remove(number, capacity, unmapped=True)


def _rank(segment: Segment, writer: Hashable) -> tuple[bool, int]:
    return segment.writer != writer, segment.capacity_bytes
