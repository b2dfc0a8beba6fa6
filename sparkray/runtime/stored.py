"""Objects in stores, as this process reads them: mapped, pinned while they are.

    pin at the node's agent, which fetches a copy if need be  ->  map the segment
    no copy to be had                                         ->  ask the owner

The owner knows of other copies, has the object made again, or says why not.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sparkray.exceptions import ObjectLostError
from sparkray.protocol.messages import ObjectPinned, ObjectSource, PinObject
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import PENDING, STORED, Entry
from sparkray.runtime.waiter import Waiter
from sparkray.runtime.waits import Waits
from sparkray.store.segment import map_for_reading


class OutOfTime(Exception):
    """A lost object was not made again by the reader's deadline."""


class StoredObjects:
    """For caller threads; the lock is not held.

    Args:
        waits: for those that are lost.
    """

    def __init__(
        self,
        shared: Shared,
        ownership: Ownership,
        waits: Waits,
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._waits = waits

    def pin_ahead(self, entries: Sequence[Entry]) -> None:
        """Map all that are there, their pins under way together."""
        stored = [e for e in entries if e.state == STORED and self._mapping(e) is None]
        if len(stored) < 2:
            return
        agent = self._shared.agent
        with self._shared.blocking():
            calls = [(e, agent.start(_pin_call(e))) for e in reversed(stored)]
            try:
                while calls:
                    entry, call = calls[-1]
                    with contextlib.suppress(ObjectLostError):  # `view_of` sees to it
                        self._map(entry, agent.wait_for(call))
                    calls.pop()
            finally:  # one failed, or Ctrl-C
                for entry, call in calls:
                    call.abandon(self._undo_pin(entry.id))

    def view_of(
        self, entry: Entry, tried: set[bytes], deadline_s: float | None
    ) -> memoryview | None:
        """Return the bytes of a stored object; None: look at the entry again.

        Args:
            tried: nodes without a copy: filled here from call to call.

        Raises:
            ObjectLostError: there is no copy, and there will be none.
            OutOfTime: it was lost, and not made again by the deadline.
        """
        view = self._mapping(entry)
        if view is not None:
            return view
        sources = entry.sources or []
        try:
            if any(s.node_id == self._shared.address.node_id for s in sources):
                pinned = self._pin(entry)
            else:
                with self._shared.blocking():
                    pinned = self._pin(entry)
        except ObjectLostError as error:
            self._seek(entry, sources, tried, error, deadline_s)
            return None
        return self._map(entry, pinned)

    def _seek(
        self,
        entry: Entry,
        sources: Sequence[ObjectSource],
        tried: set[bytes],
        error: ObjectLostError,
        deadline_s: float | None,
    ) -> None:
        """Hear of other copies of an object, or wait until it has been made again.

        Args:
            sources: where no copy could be read just now, because of ``error``.
        """
        nodes = {source.node_id for source in sources}
        if nodes & tried:
            tried.clear()  # one of them has it again
        tried |= nodes
        with self._shared.lock:
            if entry.state == STORED and (entry.sources or []) == sources:
                self._report_lost(entry, tried, error)  # else another thread has
            pending = entry.state == PENDING
            if pending:
                waiter = Waiter(1, stop_on_failure=False)
                entry.waiters = [*(entry.waiters or ()), waiter]
        if not pending:
            return
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if not self._waits.wait_for(waiter, left_s, self._waits.story_of([entry])):
            with self._shared.lock:
                if entry.waiters and waiter in entry.waiters:
                    entry.waiters.remove(waiter)
            raise OutOfTime

    def _report_lost(
        self, entry: Entry, tried: set[bytes], error: ObjectLostError
    ) -> None:
        reason = error.reason or str(error)
        if entry.owner is not None:
            self._ownership.ask_again(entry, tried, reason)
            return
        lost = self._ownership.copies_lost(entry, tried, reason)
        if lost is not None:
            raise lost from None

    def _pin(self, entry: Entry) -> ObjectPinned:
        call = self._shared.agent.start(_pin_call(entry))
        try:
            pinned: ObjectPinned = self._shared.agent.wait_for(call)
        except BaseException:
            call.abandon(self._undo_pin(entry.id))
            raise
        return pinned

    def _undo_pin(self, object_id: bytes) -> Callable[[Any], None]:
        def undo(answer: Any) -> None:
            if isinstance(answer, ObjectPinned):
                self._shared.note_unmapped(object_id)

        return undo

    def _mapping(self, entry: Entry) -> memoryview | None:
        mapping = entry.mapping() if entry.mapping is not None else None
        return None if mapping is None else memoryview(mapping).toreadonly()

    def _map(self, entry: Entry, pinned: ObjectPinned) -> memoryview:
        object_id, note = entry.id, self._shared.note_unmapped
        try:
            view = map_for_reading(
                pinned.path, pinned.size_bytes, lambda: note(object_id)
            )
        except BaseException:
            note(object_id)
            raise
        with self._shared.lock:
            known = self._mapping(entry)
            if known is not None:
                return known  # another thread was faster; ours unmaps itself
            entry.mapping = weakref.ref(view.obj)
            here = self._shared.here()
            if all(s.node_id != here.node_id for s in entry.sources or ()):
                self._ownership.copy_made(entry, here)
        return view


def _pin_call(entry: Entry) -> Callable[[int], PinObject]:
    return lambda call: PinObject(call, entry.id, entry.sources or [])
