"""What a store is copying to disk now.  Pure."""

from __future__ import annotations

from sparkray.store.state.objects import SPILLER, StoredObject
from sparkray.store.state.segments import Segment


class Spills:
    """Copies under way, by the number of their file."""

    def __init__(self) -> None:
        self._last_file = 0
        self._running: dict[int, tuple[StoredObject, Segment]] = {}
        self.bytes = 0  #: memory that is free once they are done, unless pinned again
        self.allowed = True  #: False after one has failed, for a while

    def start(self, stored: StoredObject, segment: Segment) -> int:
        """Return the number of the file that the object goes to."""
        self._last_file += 1
        segment.holders.add(SPILLER)
        self.bytes += segment.capacity_bytes
        self._running[self._last_file] = (stored, segment)
        return self._last_file

    def end(self, file: int) -> tuple[StoredObject, Segment]:
        """Return what was copied to a file."""
        stored, segment = self._running.pop(file)
        self.bytes -= segment.capacity_bytes
        segment.holders.discard(SPILLER)
        return stored, segment
