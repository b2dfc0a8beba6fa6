"""The table of one node's store: objects, pins, the limit, who waits.  Pure.

    create ──► CREATING ──seal──► SEALED ◄──────restored────── RESTORING
                  │                 │  ▲                           ▲
                abort           spill  pinned meanwhile,       room │
                  ▼                 ▼  │ or spill failed            │
               (nothing)        SPILLING ──────spilled──────► SPILLED ◄─┐
                                    SEALED, and already on disk ────────┘

A spilled object that finds no room, because readers hold all of it, is read where it
is: they may be waiting for this very object.

`free` leads out of every state.  Memory that a reader still maps stays counted as used
until the last pin on it is gone, whatever became of the object.

Methods change the table and return `Action`s for the caller, in order.  Room goes first
to those who read (restores and copies from other nodes: tasks that hold memory wait for
them), then to those who write, each in the order in which they asked.  The segments,
live and warm together, never exceed the limit; there is no exception.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from sparkray.exceptions import ObjectStoreFullError
from sparkray.ids import TASK_ID_BYTES
from sparkray.store.state.actions import (
    Action,
    DeleteFile,
    Pinned,
    Refused,
    Spill,
)
from sparkray.store.state.disk import Spills
from sparkray.store.state.objects import (
    IdleObjects,
    ObjectState,
    PinTable,
    StoredObject,
    describe,
)
from sparkray.store.state.rooms import RESTORER, Room, RoomTable
from sparkray.store.state.segments import Segment, SegmentTable, capacity_for
from sparkray.words import counted


class Accounting:
    """The store's table.

    Args:
        limit_bytes: size of the store; whole pages of it are used.
        high_water: fraction of the limit above which idle objects go to disk before
            anybody waits for their room.
    """

    def __init__(self, limit_bytes: int, high_water: float) -> None:
        self._segments = SegmentTable(capacity_for(limit_bytes))
        self._high_water_bytes = int(limit_bytes * high_water)
        self._objects: dict[bytes, StoredObject] = {}
        self._idle = IdleObjects()
        self._rooms = RoomTable()
        self._pins = PinTable()
        self._awaiting: dict[bytes, dict[int, Hashable]] = {}  #: pins: ticket -> client
        self._expected: set[bytes] = set()
        self._ticket = 0
        self._spills = Spills()
        self._closed: set[bytes] = set()  #: prefixes of ids that nobody takes any more

    # --- looking ---

    @property
    def limit_bytes(self) -> int:
        return self._segments.limit_bytes

    @property
    def used_bytes(self) -> int:
        """Memory of objects; what is kept warm for the next ones does not count."""
        return self._segments.live_bytes

    @property
    def warm_bytes(self) -> int:
        return self._segments.warm_bytes

    @property
    def waiting(self) -> int:
        """How many creates and restores wait for room."""
        return self._rooms.waiting

    @property
    def has_originals(self) -> bool:
        """Whether any object is no copy of another node's."""
        return any(stored.primary for stored in self._objects.values())

    def state_of(self, object_id: bytes) -> ObjectState | None:
        stored = self._objects.get(object_id)
        if stored is not None:
            return stored.state
        return ObjectState.CREATING if self._rooms.creates_of(object_id) else None

    def size_of(self, object_id: bytes) -> int | None:
        """Return the size of a sealed object, None if there is none."""
        stored = self._objects.get(object_id)
        return None if stored is None else stored.size_bytes

    def objects_of(self, owner: bytes) -> list[bytes]:
        """Return the objects of one owner, those that are still written too."""
        mine = [key for key, stored in self._objects.items() if stored.owner == owner]
        return mine + [
            key for key in self._rooms.created_ids() if key.startswith(owner)
        ]

    def pass_on(self, object_ids: Iterable[bytes], owner: bytes) -> None:
        """Objects have another owner from now on, those too that are still written;
        unknown ones are passed over."""
        for object_id in object_ids:
            if (stored := self._objects.get(object_id)) is not None:
                stored.owner = owner
            for room in self._rooms.creates_of(object_id):
                room.heir = owner

    def waits_for_room(self, object_id: bytes) -> bool:
        """Whether a restore or a copy of this object waits for room in memory."""
        return self._rooms.waiting_reader(object_id) is not None

    def writer_of(self, object_id: bytes) -> Hashable:
        """Return who writes an object, None if nobody does."""
        rooms = self._rooms.creates_of(object_id)
        return next((room.client for room in rooms if room.segment is not None), None)

    def describe(self) -> str:
        """Return what takes the room, for messages."""
        objects, writing = self._objects.values(), self._rooms.being_written()
        segments = [stored.segment for stored in objects if stored.segment is not None]
        segments += [room.segment for room in writing if room.segment is not None]
        freed = self.used_bytes - sum(s.capacity_bytes for s in segments)
        parts = describe(objects, [room.size_bytes for room in writing], freed)
        waiting = (
            f"; waiting: {counted(self.waiting, 'request')}" if self.waiting else ""
        )
        return f"{self.used_bytes} bytes used ({parts}){waiting}"

    # --- creating ---

    def create(
        self,
        client: Hashable,
        object_id: bytes,
        size_bytes: int,
        *,
        primary: bool = True,
    ) -> tuple[int, list[Action]]:
        """Ask for room; the answer is a `Grant` or `Refused` with the ticket returned.

        Repeatable: the same client and object get the same ticket, and the grant again.

        Raises:
            ObjectStoreFullError: it is larger than the whole store.
        """
        capacity = capacity_for(size_bytes)
        if capacity > self.limit_bytes:
            raise ObjectStoreFullError(
                size_bytes, self.limit_bytes, "the object is larger than the store"
            )
        known = self._rooms.create_by(client, object_id)
        if known is not None and known.size_bytes == size_bytes:
            known.freed = False
            again = [known.granted(fresh=False)] if known.segment else []
            return known.ticket, again
        actions = [] if known is None else self._abort(known)
        room = Room(self._next_ticket(), object_id, size_bytes, client, primary)
        room.freed = primary and object_id[:TASK_ID_BYTES] in self._closed
        self._rooms.ask(room)
        return room.ticket, actions + self._serve()

    def seal(self, client: Hashable, object_id: bytes, owner: bytes) -> list[Action]:
        """The object is written.  Ignored if unknown: it was sealed or aborted."""
        room = self._rooms.create_by(client, object_id)
        if room is None or room.segment is None:
            return []
        segment = room.segment
        self._rooms.withdraw(room)
        segment.holders.discard(client)
        known = self._objects.get(object_id)
        if room.freed or known is not None:
            actions = self._segments.settle(segment)
            if known is not None and room.primary and not known.primary:
                known.primary = True  # it was made again: this copy must stay
                self._idle.remove(object_id)
                self._idle.touch(known)
        else:
            segment.object_id = object_id
            self._objects[object_id] = StoredObject(
                object_id,
                room.size_bytes,
                room.heir or owner,
                room.primary,
                ObjectState.SEALED,
                segment,
            )
            actions = []
            self._idle.touch(self._objects[object_id])
        return actions + self._answer_pins(object_id) + self._serve()

    def abort(
        self, client: Hashable, object_id: bytes, *, gone: bool = False
    ) -> list[Action]:
        """The object will not be written.

        Args:
            gone: the writer did not say so itself, so it may still be writing.
        """
        room = self._rooms.create_by(client, object_id)
        if room is None:
            return []
        return self._abort(room, gone=gone) + self._serve()

    def segment_failed(self, ticket: int) -> list[Action]:
        """The file of a granted create could not be made: take the grant back."""
        room = self._rooms.get(ticket)
        if room is None or room.segment is None:
            return []
        self._rooms.withdraw(room)
        actions = self._segments.discard(room.segment)
        return actions + self._answer_pins(room.object_id) + self._serve()

    def give_up(self, ticket: int) -> list[Action]:
        """A create or pin has waited long enough.  Ignored if it was served."""
        room = self._rooms.get(ticket)
        if room is not None and room.segment is None:
            return self._abort(room) + self._serve()
        for object_id, tickets in self._awaiting.items():
            if tickets.pop(ticket, None) is not None:
                if not tickets:
                    del self._awaiting[object_id]
                    self._stop_restore(object_id)
                return self._serve()
        return []

    # --- pinning ---

    def pin(self, client: Hashable, object_id: bytes) -> tuple[int, list[Action]]:
        """Ask for an object in memory; the answer is `Pinned` or `Refused`.

        Raises:
            KeyError: there is no such object, and nobody makes or expects it.
        """
        if self.state_of(object_id) is None and object_id not in self._expected:
            raise KeyError(object_id)
        ticket = self._next_ticket()
        self._awaiting.setdefault(object_id, {})[ticket] = client
        return ticket, self._answer_pins(object_id) + self._serve()

    def expect(self, object_id: bytes) -> None:
        """The object is on its way here: pins on it wait until `expect_no_more`."""
        self._expected.add(object_id)

    def expect_no_more(self, object_id: bytes) -> list[Action]:
        self._expected.discard(object_id)
        return self._answer_pins(object_id) + self._serve()

    def unpin(self, client: Hashable, object_ids: Iterable[bytes]) -> list[Action]:
        """Take back one pin on each.

        An object that was freed and made again may be pinned in two segments.  Nobody
        can tell which pin is meant, so both are held until the last one is gone.
        """
        actions: list[Action] = []
        for object_id in object_ids:
            actions += self._let_go(self._pins.take_back(client, object_id))
        return actions + self._serve()

    # --- freeing ---

    def free(self, object_ids: Iterable[bytes]) -> list[Action]:
        """Nobody needs these any more.  Unknown ones are ignored."""
        actions: list[Action] = []
        for object_id in object_ids:
            for room in self._rooms.creates_of(object_id):
                if room.segment is None:
                    actions += self._abort(room, reason="the object was freed")
                room.freed = True
            stored = self._objects.pop(object_id, None)
            if stored is not None:
                actions += self._drop(stored)
            actions += self._answer_pins(object_id)
        return actions + self._serve()

    def close_inbox(self, prefix: bytes, keep: Collection[bytes]) -> list[Action]:
        """Free what was made under a prefix of ids, all but ``keep``.

        What is still written under it, or will be, is freed once it is sealed; copies
        of what other nodes keep are not.
        """
        self._closed.add(prefix)
        known = [*self._objects, *self._rooms.created_ids()]
        return self.free(id for id in known if id.startswith(prefix) and id not in keep)

    def forget_inboxes(self, owner: bytes) -> None:
        """The owner is gone, and with it who could write in its name."""
        self._closed = {prefix for prefix in self._closed if prefix[:-8] != owner}

    def forget_client(self, client: Hashable) -> list[Action]:
        """A process is gone: its pins, its creates and what it waits for."""
        actions: list[Action] = []
        for room in self._rooms.of_client(client):
            actions += self._abort(room, gone=True)
        segments = self._pins.forget(client)
        for segment in segments:
            segment.tainted = True
        actions += self._let_go(segments)
        for tickets in list(self._awaiting.values()):
            for ticket in [t for t, c in tickets.items() if c == client]:
                actions += [Refused(ticket, "the process is gone")]
                actions += self.give_up(ticket)
        return actions + self._serve()

    def remove_idle_segments(self) -> list[Action]:
        """Give back the memory of segments that stayed warm since the last call."""
        return self._segments.remove_idle()

    # --- disk ---

    def spilled(self, file: int) -> list[Action]:
        """The copy on disk is complete."""
        stored, segment = self._spills.end(file)
        if not self._is_current(stored):
            return [DeleteFile(file), *self._segments.settle(segment), *self._serve()]
        stored.file = file
        stored.state = ObjectState.SEALED
        if segment.holders:
            return self._serve()
        return self._evict(stored) + self._serve()

    def spill_failed(self, file: int) -> list[Action]:
        """No copy could be made; nothing more is spilled until `allow_spilling`."""
        self._spills.allowed = False
        stored, segment = self._spills.end(file)
        if not self._is_current(stored):
            return self._segments.settle(segment) + self._serve()
        stored.state = ObjectState.SEALED
        self._idle.touch(stored)
        return self._serve()

    def allow_spilling(self) -> list[Action]:
        self._spills.allowed = True
        return self._serve()

    def restored(self, ticket: int) -> list[Action]:
        """The object is in memory again, or its file may be read where it is."""
        stored, segment = self._end_restore(ticket)
        if not self._is_current(stored):
            gone = [] if segment.file else self._segments.settle(segment)
            return [*self._delete_file(stored), *gone, *self._serve()]
        segment.object_id = stored.object_id
        if segment.file:
            stored.state = ObjectState.SPILLED
            stored.in_place = segment
            actions = self._answer_pins(stored.object_id)
            return actions + self._let_go([segment]) + self._serve()
        stored.state = ObjectState.SEALED
        stored.segment = segment
        self._idle.touch(stored)
        return self._answer_pins(stored.object_id) + self._serve()

    def restore_failed(self, ticket: int, *, lost: bool) -> list[Action]:
        """The object could not be read back.

        Args:
            lost: its file is gone or damaged, so the object is no more; else the
                segment could not be made, and another pin may try again.
        """
        stored, segment = self._end_restore(ticket)
        actions = [] if segment.file else self._segments.discard(segment)
        if lost or not self._is_current(stored):
            if self._is_current(stored):
                del self._objects[stored.object_id]
            actions += self._delete_file(stored)
        else:
            stored.state = ObjectState.SPILLED
        reason = "its file on disk could not be read back"
        actions += self._refuse_pins(stored.object_id, reason)
        return actions + self._serve()

    def _end_restore(self, ticket: int) -> tuple[StoredObject, Segment]:
        room = self._rooms.get(ticket)
        assert room is not None and room.restores is not None
        assert room.segment is not None
        self._rooms.withdraw(room)
        room.segment.holders.discard(RESTORER)
        return room.restores, room.segment

    def _is_current(self, stored: StoredObject) -> bool:
        return self._objects.get(stored.object_id) is stored

    # --- inside: pins ---

    def _answer_pins(self, object_id: bytes) -> list[Action]:
        """Serve who waits for an object, as far as its state allows now."""
        if object_id not in self._awaiting:
            return []
        stored = self._objects.get(object_id)
        if stored is None:
            if self._rooms.creates_of(object_id) or object_id in self._expected:
                return []
            return self._refuse_pins(object_id, "it was freed or lost")
        place = stored.segment or stored.in_place
        if place is None:
            if stored.state is ObjectState.SPILLED:
                self._ask_restore(stored)
            return []
        actions: list[Action] = []
        for ticket, client in self._awaiting.pop(object_id).items():
            self._pins.add(client, object_id, place)
            size = stored.size_bytes
            actions.append(Pinned(ticket, place.number, size, place.file))
        self._idle.remove(object_id)
        return actions

    def _refuse_pins(self, object_id: bytes, reason: str) -> list[Action]:
        tickets = self._awaiting.pop(object_id, {})
        return [Refused(ticket, reason) for ticket in tickets]

    def _ask_restore(self, stored: StoredObject) -> None:
        stored.state = ObjectState.RESTORING
        room = Room(self._next_ticket(), stored.object_id, stored.size_bytes, RESTORER)
        room.restores = stored
        self._rooms.ask(room)

    def _stop_restore(self, object_id: bytes) -> None:
        """Nobody waits for the object any more: give up asking for its room."""
        room = self._rooms.waiting_reader(object_id)
        if room is not None and room.restores is not None:
            self._rooms.withdraw(room)
            room.restores.state = ObjectState.SPILLED

    def _let_go(self, segments: Iterable[Segment]) -> list[Action]:
        """Segments have lost a holder."""
        actions: list[Action] = []
        for segment in segments:
            if segment.file:
                actions += self._let_go_of_file(segment)
            elif segment.object_id is None:
                actions += self._segments.settle(segment)
            else:
                self._idle.touch(self._objects[segment.object_id])
        return actions

    def _let_go_of_file(self, segment: Segment) -> list[Action]:
        if segment.holders:
            return []
        if segment.object_id is None:  # the object was freed meanwhile
            return [DeleteFile(segment.file)]
        self._objects[segment.object_id].in_place = None
        return []

    # --- inside: room ---

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _serve(self) -> list[Action]:
        """Give room to those who wait, in order, and keep below the high-water mark."""
        actions: list[Action] = []
        while (room := self._rooms.first()) is not None:
            capacity = capacity_for(room.size_bytes)
            if not self._make_fit(capacity, actions):
                restores = self._rooms.waiting_restores()
                if not restores or self._will_fit(capacity):
                    return actions
                actions += map(self._read_in_place, restores)
                continue
            segment, fresh, removals = self._segments.take(capacity, room.client)
            self._rooms.grant(room, segment)
            actions += [*removals, room.granted(fresh=fresh)]
        target = self._high_water_bytes
        while self._segments.live_bytes - self._spills.bytes > target:
            if not self._shrink(actions, keep=1):
                break
        return actions

    def _make_fit(self, capacity_bytes: int, actions: list[Action]) -> bool:
        """Evict until there is room.  False: there may be when the disk is done."""
        table = self._segments
        while not table.would_fit(capacity_bytes):
            if self._will_fit(capacity_bytes) or not self._shrink(actions, keep=0):
                return False
        return True

    def _will_fit(self, capacity_bytes: int) -> bool:
        """Whether there is room once the disk is done, if no spill is cut short."""
        planned = self._segments.live_bytes - self._spills.bytes + capacity_bytes
        return planned <= self._segments.limit_bytes

    def _read_in_place(self, room: Room) -> Action:
        """Serve a restore without memory."""
        assert room.restores is not None
        self._rooms.grant(room, Segment(0, 0, room.restores.file))
        return room.granted(fresh=False)

    def _shrink(self, actions: list[Action], *, keep: int) -> bool:
        """Evict one object, or begin to; False if there is none beyond ``keep``."""
        object_id = self._idle.cheapest()
        if object_id is not None:
            actions += self._evict(self._objects[object_id])
            return True
        object_id = self._idle.oldest_primary(keep=keep)
        if object_id is None or not self._spills.allowed:
            return False
        actions.append(self._start_spill(self._objects[object_id]))
        return True

    def _start_spill(self, stored: StoredObject) -> Action:
        assert stored.segment is not None
        self._idle.remove(stored.object_id)
        stored.state = ObjectState.SPILLING
        file = self._spills.start(stored, stored.segment)
        return Spill(stored.object_id, stored.segment.number, stored.size_bytes, file)

    def _abort(
        self, room: Room, *, gone: bool = False, reason: str = "it was withdrawn"
    ) -> list[Action]:
        self._rooms.withdraw(room)
        actions: list[Action] = []
        if room.segment is None:
            actions.append(Refused(room.ticket, reason))
        else:
            room.segment.tainted |= gone
            room.segment.holders.discard(room.client)
            actions += self._segments.settle(room.segment)
        return actions + self._answer_pins(room.object_id)

    # --- inside: objects ---

    def _evict(self, stored: StoredObject) -> list[Action]:
        """Take an idle object out of memory; it is on disk, or on another node."""
        segment = stored.segment
        assert segment is not None and not segment.holders
        self._idle.remove(stored.object_id)
        stored.segment = segment.object_id = None
        stored.state = ObjectState.SPILLED
        if not stored.file:
            del self._objects[stored.object_id]
        return self._segments.settle(segment)

    def _drop(self, stored: StoredObject) -> list[Action]:
        """Let go of an object that was freed."""
        self._idle.remove(stored.object_id)
        if stored.state is ObjectState.RESTORING:
            self._stop_restore(stored.object_id)
            if stored.state is ObjectState.RESTORING:
                return []  # `restored` deletes the file
        actions = self._delete_file(stored)
        if stored.segment is not None:
            stored.segment.object_id = None
            actions += self._segments.settle(stored.segment)
        return actions

    def _delete_file(self, stored: StoredObject) -> list[Action]:
        """Delete the file of an object that is no more, or leave it to its readers."""
        if stored.in_place is not None:
            stored.in_place.object_id = None
            return []
        return [DeleteFile(stored.file)] if stored.file else []
