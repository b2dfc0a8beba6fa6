"""Which tasks are kept, for how long, and with what: against a simple model."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkray import ids
from sparkray.runtime.state.lineage import DROPPED, Lineage
from sparkray.runtime.state.objects import INLINE, STORED, Entry, ObjectTable
from sparkray.runtime.state.scheduling import Task

ME = ids.WorkerID(b"m" * 16)


def entry_of(table: ObjectTable, number: int, state: int = STORED) -> Entry:
    entry = Entry(ids.object_id(ME, number), local=1, state=state)
    entry.value = b"value" if state == INLINE else b""
    table.entries[entry.id] = entry
    return entry


def ended(table: ObjectTable, number: int, *inputs: Entry) -> Entry:
    """Return the stored result of a task that has just ended."""
    entry = entry_of(table, number)
    task = Task(number, None, b"args", entry, 3)
    for needed in inputs:
        needed.pins += 1
    table.lineage.made(task, entry, inputs)
    table.unpin(inputs)
    return entry


def test_a_task_is_kept_for_as_long_as_its_object_is_held() -> None:
    table = ObjectTable()
    entry = ended(table, 1)
    assert len(table.lineage) == 1
    table.drop_local(entry.id)
    assert len(table.lineage) == 0 and table.lineage.used_bytes == 0
    assert entry.made_by is None


def test_a_chain_is_kept_for_its_last_object() -> None:
    table = ObjectTable()
    entries = [ended(table, 1)]
    for number in range(2, 2_000):
        entries.append(ended(table, number, entries[-1]))
        table.drop_local(entries[-2].id)
    assert len(table.entries) == 1 and len(table.lineage) == 1_999
    table.drop_local(entries[-1].id)
    assert len(table.lineage) == 0, "and goes with it, however long it is"


def test_small_arguments_are_kept_by_value_and_with_what_they_contain() -> None:
    table = ObjectTable()
    small, inner = entry_of(table, 1, INLINE), entry_of(table, 2, INLINE)
    small.contains = [inner]
    inner.pins += 1
    entry = ended(table, 3, small)
    table.drop_local(small.id)
    table.drop_local(inner.id)
    assert table.entries.keys() == {entry.id}
    found = {i.entry.id: i for i in table.lineage.inputs_of(entry.made_by)}
    assert found[small.id].value == found[inner.id].value == b"value"
    assert list(found[small.id].contains) == [inner]


def test_one_of_several_objects_keeps_the_task() -> None:
    table = ObjectTable()
    first, second = entry_of(table, 1), entry_of(table, 2)
    task = Task(1, None, b"", first, 3)
    table.lineage.made(task, first, ())
    table.lineage.made(task, second, ())
    table.drop_local(first.id)
    assert len(table.lineage) == 1
    table.drop_local(second.id)
    assert len(table.lineage) == 0


def test_the_oldest_are_dropped_when_there_is_too_much() -> None:
    table = ObjectTable()
    table.lineage.limit_bytes = 2_000
    entries = [ended(table, number) for number in range(1, 6)]
    assert table.lineage.used_bytes <= 2_000
    kept = len(table.lineage)
    assert 0 < kept < 5
    assert [entry.made_by == DROPPED for entry in entries] == [
        *[True] * (5 - kept),
        *[False] * kept,
    ]


class Model(RuleBasedStateMachine):
    """Tasks with random arguments; refs come and go.

    Kept is, by definition, each task that can be reached from a held object over the
    arguments of tasks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = ObjectTable()
        self.number = 0
        self.made: dict[bytes, tuple[Any, list[Entry]]] = {}
        self.held: list[Entry] = []

    @rule(data=st.data(), outputs=st.integers(1, 2))
    def run(self, data: st.DataObject, outputs: int) -> None:
        some = st.lists(st.sampled_from(self.held), max_size=3, unique_by=id)
        inputs = data.draw(some) if self.held else []
        first = None
        for needed in inputs:
            needed.pins += 1
        for _ in range(outputs):
            self.number += 1
            entry = entry_of(self.table, self.number)
            first = first or Task(self.number, None, b"", entry, 3)
            self.table.lineage.made(first, entry, inputs)
            self.made[entry.id] = (first, inputs)
            self.held.append(entry)
        self.table.unpin(inputs)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.held))
        self.held.remove(entry)
        self.table.drop_local(entry.id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A task runs again: an argument that was freed is held for a while."""
        entry = data.draw(st.sampled_from(self.held))
        _, inputs = self.made[entry.id]
        for needed in inputs:
            self.table.entries[needed.id] = needed
            needed.pins += 1
        self.table.unpin(inputs)

    @invariant()
    def kept_is_what_can_be_reached(self) -> None:
        reached: set[int] = set()
        todo = list(self.held)
        while todo:
            task, inputs = self.made[todo.pop().id]
            if task.number not in reached:
                reached.add(task.number)
                todo += inputs
        assert self.table.lineage._kept.keys() == reached
        if not reached:
            assert self.table.lineage.used_bytes == 0

    @invariant()
    def inputs_of_held_objects_can_be_made(self) -> None:
        for entry in self.held:
            assert entry.made_by is self.made[entry.id][0]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_clearing_leaves_no_cycles() -> None:
    table = ObjectTable()
    entry = ended(table, 2, ended(table, 1))
    lineage: Lineage = table.lineage
    lineage.clear()
    assert entry.made_by is None and len(lineage) == 0
