"""Objects whose copies are lost: their tasks run again.

    a reader finds no copy   -> the owner is told which nodes it tried
                             -> there are others: it tries those
                             -> the owner reaches one of them: it has a copy from then
                             -> none: the task runs again, and so do those whose objects
                                it needs and that are gone as well; the reader waits
                             -> that cannot be: `ObjectLostError` says why

Nothing is made again before somebody wants to read it.  What is kept for that is the
business of `state.lineage`.  The runtime's lock is held in all methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from sparkray.exceptions import ObjectLostError
from sparkray.protocol import actors as p
from sparkray.protocol.messages import (
    AddBorrower,
    Address,
    FreeObjects,
    ObjectPinned,
    PinObject,
    ReturnValue,
)
from sparkray.runtime.functions import DYNAMIC, STREAMING
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.returns import Returns
from sparkray.runtime.shared import Shared
from sparkray.runtime.state import lineage
from sparkray.runtime.state.actor import ActorQueue
from sparkray.runtime.state.lineage import Input
from sparkray.runtime.state.objects import FAILED, INLINE, PENDING, STORED, Entry
from sparkray.runtime.state.scheduling import Again, Task
from sparkray.store.serialize import serialize
from sparkray.transport.errors import from_wire

log = logging.getLogger(__name__)


class Recovery:
    """Makes lost objects of this process again.

    Args:
        returns: takes what tasks have made.
        submitter: runs the tasks.
    """

    def __init__(
        self, shared: Shared, ownership: Ownership, returns: Returns, submitter: Any
    ) -> None:
        self._shared = shared
        self._table = shared.table
        self._ownership = ownership
        self._returns = returns
        self._submitter = submitter
        #: Objects that this node is getting a copy of, and whom to tell.
        self._bringing: dict[bytes, list[Callable[[str], None]]] = {}

    # --- what is lost ---

    def node_died(self, node_id: bytes) -> None:
        """What lay in its store is gone."""
        gone: list[bytes] = []
        for entry in self._table.entries.values():
            sources = entry.sources
            if sources and any(s.node_id == node_id for s in sources):
                entry.sources = [s for s in sources if s.node_id != node_id]
                if not entry.sources and entry.id in self._bringing:
                    gone.append(entry.id)
        for object_id in gone:  # its answer may be long in coming
            self._end_bringing(object_id, "no node that had it is alive")

    def copies_lost(
        self, entry: Entry, tried: Collection[bytes], reason: str
    ) -> ObjectLostError | None:
        """A reader found no copy of an owned object on the nodes that it tried.

        Returns:
            None if there are copies elsewhere, or will be: then the entry is pending.
        """
        if entry.state != STORED:
            return None
        if any(source.node_id not in tried for source in entry.sources or ()):
            return None
        why = self._why_not(entry)
        if not entry.sources:
            reason = "no node that had it is alive"
        if why:
            return _lost(entry, reason, why)
        log.info("object %s is made again: %s", entry.id.hex(), reason)
        self._make_again(entry)
        return None

    def bring_here(
        self,
        entry: Entry,
        tried: Collection[bytes],
        reader: Address,
        then: Callable[[str], None],
    ) -> bool:
        """Copy an object to this node, for a reader that does not reach those that have
        it: it may be that only the two do not reach one another.

        Args:
            then: called once it is here, or cannot be had: with why.

        Returns:
            False if there is nothing to try: ``then`` will not be called.
        """
        here, sources = self._shared.here(), entry.sources or []
        if entry.state != STORED or not sources or here.node_id == reader.node_id:
            return False
        if any(source.node_id not in tried for source in sources):
            return False
        if here.node_id in tried:
            return False
        waiting = self._bringing.get(entry.id)
        if waiting is not None:
            waiting.append(then)
            return True
        self._bringing[entry.id] = [then]
        self._shared.agent.request(
            lambda call: PinObject(call, entry.id, sources),
            lambda answer: self._brought(entry, answer),
        )
        return True

    def _brought(self, entry: Entry, answer: Any) -> None:
        """The agent has a copy, or has none.  I/O thread, the lock is not held."""
        why = ""
        if isinstance(answer, ObjectPinned):
            self._shared.note_unmapped(entry.id)
        else:
            why = str(from_wire(answer.error))
        with self._shared.lock:
            here = self._shared.here()
            known = {source.node_id for source in entry.sources or ()}
            if not why and entry.state == STORED and here.node_id not in known:
                self._ownership.copy_made(entry, here)
            self._end_bringing(entry.id, why)

    def _end_bringing(self, object_id: bytes, why: str) -> None:
        for then in self._bringing.pop(object_id, ()):
            then(why)
        self._submitter.settle()
        self._shared.settle_releases()

    def _why_not(self, entry: Entry) -> str:
        """Return why an object cannot be made again, "" if it can."""
        task = entry.made_by
        if self._shared.closed:
            return self._shared.closed
        if task is None:
            return lineage.NOT_MADE
        if isinstance(task, str):
            return task
        if task.number in self._submitter.tasks:
            return ""  # it runs already
        if not task.retries_left:
            return lineage.USED_UP
        key = task.template.key
        if isinstance(key, ActorQueue):
            row = key.client.row
            if row is not None and row.state == p.DEAD:
                return f"{key.client.describe()}, which has made it, has ended"
        return ""

    # --- running again ---

    def _make_again(self, entry: Entry) -> None:
        todo = [entry]
        self._reopen(entry)
        while todo:
            entry = todo.pop()
            why = self._why_not(entry)
            if why:
                error = _lost(entry, "it was freed, or its node has died", why)
                _fail(entry, serialize(error).to_bytes())
            else:
                todo += self._run_again(entry)
        self._submitter.settle()

    def _reopen(self, entry: Entry) -> None:
        """The object does not exist any more, and will again.

        Copies on nodes that are out of reach are not freed: the word could come after
        that node has made the object again.  They go with their owner.
        """
        entry.state, entry.sources, entry.value = PENDING, None, b""
        entry.kept = False
        contains, entry.contains = entry.contains, None
        if contains:
            self._table.unpin(contains)

    def _run_again(self, entry: Entry) -> list[Entry]:
        """Start the task of a reopened object; return what has to be made before."""
        task: Task = entry.made_by
        entry.task = task
        if task.number in self._submitter.tasks:
            task.again = task.again or Again([])
            task.again.entries.append(entry)
            if task.stream is not None:
                self._submitter.streams.note_taken(task.stream)
            return []
        task.again = Again([entry], 1)
        if task.retries_left > 0:
            task.retries_left -= 1
        task.attempt += 1
        task.waiting, task.worker = 0, None
        task.cancelled = task.solo = False
        task.entry.task = task
        needed = self._restore_inputs(task)
        self._submitter.run_again(task)
        return needed

    def _restore_inputs(self, task: Task) -> list[Entry]:
        """Hold all that the task needs; return what does not exist any more."""
        inputs = self._table.lineage.inputs_of(task)
        now = {item.entry.id: self._restored(item) for item in inputs}
        missing = []
        for item in inputs:
            entry = now[item.entry.id]
            if item.contains and not entry.contains and entry.state == INLINE:
                entry.contains = [now[inner.id] for inner in item.contains]
                for inner in entry.contains:
                    inner.pins += 1
        own = [now[entry.id] for entry in task.pinned or () if entry.id in now]
        task.refs = [(where, now[e.id]) for where, e in task.refs or ()] or None
        for _, entry in task.refs or ():
            if entry.owner is None and entry.state == STORED and not entry.sources:
                self._reopen(entry)
                missing.append(entry)
        for entry in own:
            entry.pins += 1
        task.pinned = own or None
        return missing

    def _restored(self, item: Input) -> Entry:
        """Return the entry of a task's argument; one that was freed comes back."""
        entry = item.entry
        held = self._table.entries.get(entry.id)
        if held is not None:
            return held
        owner = entry.owner
        if owner is not None:
            entry = self._table.borrow(entry.id, owner)
            self._table.cover(entry)
            message = AddBorrower(entry.id, self._shared.address)
            self._shared.peers.send(owner, message)
        else:
            self._table.entries[entry.id] = entry
            entry.sources = None
            if not isinstance(entry.task, Task):  # else it is on its way
                entry.state = STORED
        if item.value is not None:
            entry.state, entry.value = item.state, item.value
        return entry

    # --- what comes of it ---

    def take(self, task: Task, value: ReturnValue) -> None:
        """A task that runs again has made one of its objects."""
        offset = int(task.template.num_returns in (DYNAMIC, STREAMING))
        place = (value.index + offset).to_bytes(4, "big")
        entry = self._table.entries.get(task.entry.id[:-4] + place)
        if entry is not None and entry.state == PENDING:
            self._returns.settle(task, entry, value)
        else:
            self._drop(entry, task.entry.id[:-4] + place, value)

    def _drop(self, entry: Entry | None, object_id: bytes, value: ReturnValue) -> None:
        """Nobody wants this one, or it was not lost: then there is one more copy."""
        self._table.unpin(self._ownership.take_contained(value.contains))
        if entry is not None and entry.state == STORED:
            known = {source.node_id for source in entry.sources or ()}
            new = [s for s in value.sources if s.node_id not in known]
            entry.sources = [*(entry.sources or ()), *new]
        elif value.sources:
            nodes = [source.node_id for source in value.sources]
            self._shared.agent.send(FreeObjects([object_id], nodes))

    def ended(self, task: Task) -> None:
        """A task has ended well, its first run or a further one."""
        before, since = _missing(task)
        text = f"{task.template.name} has not made it when it ran again"
        for entry in before:
            error = ObjectLostError(entry.id.hex(), text)
            _fail(entry, serialize(error).to_bytes())
        for entry in since:
            self._make_again(entry)

    def failed(self, task: Task, error: bytes) -> None:
        """A task has failed, its first run or a further one."""
        before, since = _missing(task)
        for entry in before:
            _fail(entry, error)
        for entry in since:
            if task.cancelled:
                _fail(entry, error)
            else:
                self._make_again(entry)


def _missing(task: Task) -> tuple[list[Entry], list[Entry]]:
    """End a run; return what it has not made: lost before it began, and since."""
    task.worker = None
    again, task.again = task.again, None
    if again is None:
        return [], []
    task.entry.task = None
    return again.take_missing()


def runs_again(task: Task) -> bool:
    """Tell whether a task has ended once already."""
    return task.again is not None and task.again.begun > 0


def _fail(entry: Entry, error: bytes) -> None:
    entry.task = None
    entry.settle(FAILED, error)


def _lost(entry: Entry, reason: str, why: str) -> ObjectLostError:
    return ObjectLostError(entry.id.hex(), f"{reason}; it cannot be made again: {why}")
