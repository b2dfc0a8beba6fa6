"""What tasks return: given to the objects that were promised.

The runtime's lock is held in all methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkray.protocol.codec import encode
from sparkray.protocol.messages import FreeObjects, ObjectSource, ReturnValue
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.shared import Shared
from sparkray.runtime.state import lineage
from sparkray.runtime.state.actor import ActorClient, ActorQueue
from sparkray.runtime.state.objects import INLINE, STORED, Entry
from sparkray.runtime.state.scheduling import Task


class Returns:
    """Settles entries with the values of messages."""

    def __init__(self, shared: Shared, ownership: Ownership) -> None:
        self._shared, self._table = shared, shared.table
        self._ownership = ownership

    def settle(self, task: Task, entry: Entry, value: ReturnValue) -> None:
        """Give an entry what its task has made."""
        entry.task = None
        entry.size = value.size_bytes
        if value.contains:
            entry.contains = self._ownership.take_contained(value.contains)
        if value.value is not None:
            entry.settle(INLINE, value.value)
        else:
            entry.sources = value.sources
            self._keep(task, entry)
            entry.settle(STORED, b"")
        if task.died_on:
            self.free_strays(task, [entry.id], value.sources)
        if not self._table.is_held(entry):  # every ref went while the task ran
            self._table.entries[entry.id] = entry
            self._table.release(entry)

    def settle_dynamic(self, task: Task, values: Sequence[ReturnValue]) -> None:
        """Make an object of each item; the first return is the list of their ids."""
        first = task.entry
        items = []
        for value in values:
            entry = Entry(first.id[:-4] + (value.index + 1).to_bytes(4, "big"))
            entry.pins = 1
            self._table.entries[entry.id] = entry
            self.settle(task, entry, value)
            items.append(entry)
        first.task = None
        first.contains = items
        first.size = 0
        first.settle(INLINE, b"\x06" + encode([entry.id for entry in items]))
        if not self._table.is_held(first):
            self._table.entries[first.id] = first
            self._table.release(first)

    def free_strays(
        self, task: Task, object_ids: list[bytes], sources: Sequence[ObjectSource] = ()
    ) -> None:
        """Free what workers had stored that died before they could tell.

        Args:
            sources: where the object is that is to stay.
        """
        own = self._shared.address.node_id
        nodes = {*(task.died_on or ())} - {source.node_id for source in sources}
        if nodes:
            message = FreeObjects(object_ids, sorted(nodes - {own}), own in nodes)
            self._shared.agent.send(message)

    def _keep(self, task: Task, entry: Entry) -> None:
        """The object lies in a store, which may be lost: remember how it was made."""
        template = task.template
        if not template.max_retries:
            actor = isinstance(template.key, ActorQueue)
            entry.made_by = lineage.NO_ACTOR_RETRIES if actor else lineage.NO_RETRIES
        elif task.stored_args is not None:
            entry.made_by = lineage.LARGE_ARGUMENTS
        else:
            needs = [
                needed
                for needed in task.pinned or ()
                if needed.task.__class__ is not ActorClient  # no value
            ]
            self._table.lineage.made(task, entry, needs)
