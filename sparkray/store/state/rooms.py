"""Who asked a store for room, who waits for it, who has it.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from sparkray.store.state.actions import Action, Grant, Restore, Verify
from sparkray.store.state.objects import StoredObject
from sparkray.store.state.segments import Segment

#: Holder of a segment that an object is read back into.
RESTORER = "(restoring)"


@dataclass(slots=True)
class Room:
    """A wish for room: of a create (``client`` writes) or a restore."""

    ticket: int
    object_id: bytes
    size_bytes: int
    client: Hashable
    primary: bool = True
    restores: StoredObject | None = None
    segment: Segment | None = None  #: once granted
    freed: bool = False  #: nobody wants the object any more
    heir: bytes = b""  #: who owns the object once it is written, if not its maker

    def granted(self, *, fresh: bool) -> Action:
        """Return what the caller has to do now that there is room."""
        segment, stored = self.segment, self.restores
        assert segment is not None
        place = (self.ticket, segment.number, segment.capacity_bytes, fresh)
        if stored is None:
            return Grant(*place)
        if segment.file:
            return Verify(self.ticket, stored.size_bytes, stored.file)
        return Restore(*place, stored.size_bytes, stored.file)


class RoomTable:
    """All wishes, from being asked for until the object is written or given up."""

    def __init__(self) -> None:
        self._rooms: dict[int, Room] = {}
        self._creates: dict[bytes, dict[Hashable, Room]] = {}
        self._readers: deque[Room] = deque()
        self._writers: deque[Room] = deque()

    def ask(self, room: Room) -> None:
        """Add a wish, at the end of its queue."""
        self._rooms[room.ticket] = room
        if room.restores is None:
            self._creates.setdefault(room.object_id, {})[room.client] = room
        self._queue_of(room).append(room)

    def withdraw(self, room: Room) -> None:
        """Remove a wish, whether it waits or was granted."""
        del self._rooms[room.ticket]
        if room.restores is None:
            creates = self._creates[room.object_id]
            del creates[room.client]
            if not creates:
                del self._creates[room.object_id]
        if room.segment is None:
            self._queue_of(room).remove(room)

    def first(self) -> Room | None:
        """Return who is to be served next: readers come before writers."""
        for queue in (self._readers, self._writers):
            if queue:
                return queue[0]
        return None

    def grant(self, room: Room, segment: Segment) -> None:
        """Give room to one who waits."""
        self._queue_of(room).remove(room)
        segment.holders.add(room.client)
        room.segment = segment

    @property
    def waiting(self) -> int:
        return len(self._readers) + len(self._writers)

    def get(self, ticket: int) -> Room | None:
        return self._rooms.get(ticket)

    def create_by(self, client: Hashable, object_id: bytes) -> Room | None:
        return self._creates.get(object_id, {}).get(client)

    def creates_of(self, object_id: bytes) -> list[Room]:
        return list(self._creates.get(object_id, {}).values())

    def created_ids(self) -> Iterator[bytes]:
        return iter(self._creates)

    def of_client(self, client: Hashable) -> list[Room]:
        return [room for room in self._rooms.values() if room.client == client]

    def waiting_reader(self, object_id: bytes) -> Room | None:
        """Return the restore or copy of an object that waits for room, if any."""
        return next((r for r in self._readers if r.object_id == object_id), None)

    def waiting_restores(self) -> list[Room]:
        return [room for room in self._readers if room.restores is not None]

    def being_written(self) -> list[Room]:
        return [room for room in self._rooms.values() if room.segment is not None]

    def _queue_of(self, room: Room) -> deque[Room]:
        is_write = room.restores is None and room.primary
        return self._writers if is_write else self._readers
