"""Which tasks made the objects that lie in stores, so that they can run again.  Pure.

    a task's value goes into a store    `made`: the task is kept, with its arguments
    the object is freed                 `forget`, unless a task that is kept needs it
    too much is kept                    the oldest are dropped, and say so

Kept of an argument is its value where that is small, else how to make it: a chain of
tasks can run again though only its last object is still held.  What was put, and
arguments too large for a message, are not kept: their memory would never be free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sparkray.runtime.state.objects import Entry
    from sparkray.runtime.state.scheduling import Task

#: Bytes that a kept task and each of its arguments take besides what can be counted.
TASK_BYTES: Final = 600
INPUT_BYTES: Final = 300

#: Why an object cannot be made again.
NOT_MADE: Final = "no task has made it: it was put"
NO_RETRIES: Final = "its task has max_retries=0"
NO_ACTOR_RETRIES: Final = "an actor has made it, without max_task_retries"
LARGE_ARGUMENTS: Final = (
    "arguments of its task were too large to be kept; put them and keep the refs"
)
DROPPED: Final = "too many tasks were kept for that: see lineage_max_bytes"
USED_UP: Final = "its task has no retries left"


@dataclass(slots=True)
class Input:
    """An argument of a kept task, or an object inside of one."""

    entry: Entry
    state: int  #: of the value
    value: bytes | None  #: or the error; None: it lies in a store
    contains: Sequence[Entry] = ()


@dataclass(slots=True)
class Kept:
    """A task that can run again."""

    task: Task
    inputs: list[Input]
    size_bytes: int
    #: What somebody may still want, by id.
    outputs: dict[bytes, Entry] = field(default_factory=dict)


class Lineage:
    """All tasks that are kept.  The caller holds the runtime's lock.

    Args:
        held: the objects that something holds, by id.
        limit_bytes: about so much memory at most.
    """

    def __init__(self, held: Mapping[bytes, Entry], limit_bytes: int = 1 << 26) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held = held
        self._kept: dict[int, Kept] = {}  #: by the task's number, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def made(self, task: Task, output: Entry, inputs: Iterable[Entry]) -> None:
        """A task has made an object that lies in a store now.

        Args:
            inputs: what the task needs, and all of it is still there.
        """
        known = self._kept.get(task.number)
        if known is None:
            known = self._keep(task, inputs)
        if output.made_by is task:
            return
        output.made_by = task
        known.outputs[output.id] = output
        self._trim()

    def inputs_of(self, task: Task) -> Sequence[Input]:
        return self._kept[task.number].inputs

    def forget(self, output: Entry) -> None:
        """Nobody needs to make this object again, and so, maybe, its arguments."""
        todo = [output]
        while todo:
            entry = todo.pop()
            task, entry.made_by = entry.made_by, None
            kept = None if isinstance(task, str) else self._kept.get(task.number)
            if kept is not None:
                kept.outputs.pop(entry.id, None)
                if not kept.outputs:
                    todo += self._drop(kept)

    def clear(self) -> None:
        """Forget everything: entries and tasks refer to each other."""
        for kept in self._kept.values():
            for entry in kept.outputs.values():
                entry.made_by = None
        self._kept.clear()
        self.used_bytes = 0

    def _keep(self, task: Task, inputs: Iterable[Entry]) -> Kept:
        found: dict[bytes, Input] = {}
        todo = list(inputs)
        while todo:
            entry = todo.pop()
            if entry.id in found:
                continue
            contains: Sequence[Entry] = ()
            value = entry.value or None
            if value is not None:
                contains = tuple(entry.contains or ())
                todo += contains
            found[entry.id] = Input(entry, entry.state, value, contains)
            entry.dependents += 1
        kept = Kept(task, list(found.values()), _size(task, found.values()))
        self._kept[task.number] = kept
        self.used_bytes += kept.size_bytes
        return kept

    def _trim(self) -> None:
        while self.used_bytes > self.limit_bytes:
            oldest = next(iter(self._kept.values()))
            for entry in oldest.outputs.values():
                if entry.made_by is oldest.task:
                    entry.made_by = DROPPED
            for entry in self._drop(oldest):
                self.forget(entry)

    def _drop(self, kept: Kept) -> list[Entry]:
        """Remove a task; return what need not be made again either."""
        del self._kept[kept.task.number]
        self.used_bytes -= kept.size_bytes
        unneeded = []
        for item in kept.inputs:
            entry = item.entry
            entry.dependents -= 1
            held = self._held.get(entry.id) is entry
            if not entry.dependents and not held and entry.made_by is not None:
                unneeded.append(entry)
        return unneeded


def _size(task: Any, inputs: Iterable[Input]) -> int:
    each = (INPUT_BYTES + len(item.value or b"") for item in inputs)
    return TASK_BYTES + len(task.args) + sum(each)
