"""Objects of one store, who has pinned them, which of them are idle.  Pure."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sparkray.store.state.segments import Segment
from sparkray.words import counted

#: Holder of a segment that is being copied to disk.
SPILLER: Final = "(spilling)"


class ObjectState(enum.Enum):
    """Where an object is in its life."""

    CREATING = "creating"
    """Somebody has asked for room, or has it and writes."""
    SEALED = "sealed"
    """In memory, complete; readers may pin it."""
    SPILLING = "spilling"
    """In memory, being copied to disk; readers may pin it."""
    SPILLED = "spilled"
    """On disk only."""
    RESTORING = "restoring"
    """On disk; room in memory was asked for, or is being filled."""


@dataclass(slots=True)
class StoredObject:
    """An object that was sealed."""

    object_id: bytes
    size_bytes: int
    owner: bytes
    primary: bool  #: False: a copy of what another node has
    state: ObjectState
    segment: Segment | None
    file: int = 0  #: the file on disk that holds it, 0 for none
    in_place: Segment | None = None  #: that file, while it is read where it is


@dataclass(slots=True)
class _Pins:
    count: int = 0
    segments: list[Segment] = field(default_factory=list)


class PinTable:
    """What each client has pinned; a pin makes the client a holder of the segment."""

    def __init__(self) -> None:
        self._pins: dict[Hashable, dict[bytes, _Pins]] = {}

    def add(self, client: Hashable, object_id: bytes, segment: Segment) -> None:
        pins = self._pins.setdefault(client, {}).setdefault(object_id, _Pins())
        pins.count += 1
        if segment not in pins.segments:
            pins.segments.append(segment)
        segment.holders.add(client)

    def take_back(self, client: Hashable, object_id: bytes) -> list[Segment]:
        """Remove one pin; return the segments that the client holds no longer."""
        mine = self._pins.get(client, {})
        pins = mine.get(object_id)
        if pins is None:
            return []
        pins.count -= 1
        if pins.count:
            return []
        del mine[object_id]
        if not mine:
            del self._pins[client]
        return self._released(client, pins)

    def forget(self, client: Hashable) -> list[Segment]:
        """Remove all pins of a client; return the segments that it held."""
        segments: list[Segment] = []
        for pins in self._pins.pop(client, {}).values():
            segments += self._released(client, pins)
        return segments

    def _released(self, client: Hashable, pins: _Pins) -> list[Segment]:
        for segment in pins.segments:
            segment.holders.discard(client)
        return pins.segments


class IdleObjects:
    """Sealed objects in memory that nobody holds, least recently used first."""

    def __init__(self) -> None:
        self._primary: OrderedDict[bytes, None] = OrderedDict()
        self._copies: OrderedDict[bytes, None] = OrderedDict()
        self._on_disk: OrderedDict[bytes, None] = OrderedDict()

    def touch(self, stored: StoredObject) -> None:
        """Note that the object was used now: it is evicted after all others."""
        if stored.segment is None or stored.segment.holders:
            return
        if stored.file:
            idle = self._on_disk
        else:
            idle = self._primary if stored.primary else self._copies
        idle[stored.object_id] = None
        idle.move_to_end(stored.object_id)

    def remove(self, object_id: bytes) -> None:
        for idle in (self._primary, self._copies, self._on_disk):
            idle.pop(object_id, None)

    def cheapest(self) -> bytes | None:
        """Return an object that can leave memory at once: a copy, or one on disk."""
        for idle in (self._copies, self._on_disk):
            if idle:
                return next(iter(idle))
        return None

    def oldest_primary(self, *, keep: int) -> bytes | None:
        """Return the one to be spilled next; None if there are only ``keep``."""
        return next(iter(self._primary)) if len(self._primary) > keep else None


def describe(
    objects: Iterable[StoredObject], writing: list[int], freed_bytes: int
) -> str:
    """Return how many bytes there are of what kind, for messages.

    Args:
        writing: sizes of what is being written.
        freed_bytes: memory of objects that are no more, but that readers still map.
    """
    kinds: dict[str, list[int]] = {"being written": writing} if writing else {}
    for stored in objects:
        kinds.setdefault(_kind_of(stored), []).append(stored.size_bytes)
    parts = [
        f"{sum(sizes)} bytes in {counted(len(sizes), 'object')} {kind}"
        for kind, sizes in sorted(kinds.items())
    ]
    if freed_bytes:
        parts.append(f"{freed_bytes} bytes of freed objects that are still in use")
    return ", ".join(parts) or "empty"


def _kind_of(stored: StoredObject) -> str:
    if stored.segment is None:
        return "on disk"
    if stored.segment.holders - {SPILLER}:
        return "in use by readers"
    if stored.state is ObjectState.SPILLING:
        return "on the way to disk"
    return "idle" if stored.primary else "idle copies"
