"""The table of owned and borrowed objects: kept while held, freed when not."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkray import ids
from sparkray.protocol.messages import Address
from sparkray.runtime.state.objects import FAILED, INLINE, Entry, ObjectTable

ME, OTHER = ids.WorkerID(b"m" * 16), ids.WorkerID(b"o" * 16)
OWNER = Address(OTHER, b"n" * 28, "/o.sock", "", 0)


def owned(table: ObjectTable, number: int, local: int = 1) -> Entry:
    entry = Entry(ids.object_id(ME, number), local=local)
    table.entries[entry.id] = entry
    return entry


def test_an_owned_object_ends_with_its_last_local_ref() -> None:
    table = ObjectTable()
    entry = owned(table, 1, local=2)
    table.drop_local(entry.id)
    assert table.freed == []
    table.drop_local(entry.id)
    assert table.freed == [entry] and not table.entries


def test_a_task_in_flight_keeps_what_it_uses() -> None:
    table = ObjectTable()
    entry = owned(table, 1)
    entry.pins += 1
    table.drop_local(entry.id)
    assert table.freed == []
    table.unpin([entry])
    assert table.freed == [entry]


def test_a_borrower_keeps_an_object_until_it_lets_go() -> None:
    table = ObjectTable()
    entry = owned(table, 1)
    table.add_borrower(entry.id, OTHER)
    table.drop_local(entry.id)
    assert table.freed == []
    table.remove_borrower(entry.id, OTHER, 1)
    assert table.freed == [entry]


def test_counts_may_arrive_in_the_wrong_order() -> None:
    table = ObjectTable()
    entry = owned(table, 1)
    table.remove_borrower(entry.id, OTHER, 1)
    table.drop_local(entry.id)
    assert table.freed == [], "a negative count means that a message is on its way"
    table.add_borrower(entry.id, OTHER)
    table.release(entry)
    assert table.freed == [entry]


def test_a_dead_borrower_holds_nothing() -> None:
    table = ObjectTable()
    entry = owned(table, 1)
    table.add_borrower(entry.id, OTHER)
    table.add_borrower(entry.id, OTHER)
    table.drop_local(entry.id)
    table.borrower_died(OTHER)
    assert table.freed == [entry]


def test_an_object_keeps_those_whose_refs_it_contains() -> None:
    table = ObjectTable()
    inner, outer = owned(table, 1), owned(table, 2)
    inner.pins += 1
    outer.contains = [inner]
    table.drop_local(inner.id)
    assert table.freed == []
    table.drop_local(outer.id)
    assert table.freed == [outer, inner]


def test_a_borrowed_object_is_returned_with_all_its_counts() -> None:
    table = ObjectTable()
    entry = table.borrow(ids.object_id(OTHER, 1), OWNER)
    entry.local += 1
    table.cover(entry)
    table.cover(entry)
    table.drop_local(entry.id)
    assert table.returned == [entry] and entry.registered == 2


def test_what_a_task_brought_and_we_keep_is_named_once() -> None:
    table = ObjectTable()
    kept = table.borrow(ids.object_id(OTHER, 1), OWNER)
    gone = table.borrow(ids.object_id(OTHER, 2), OWNER)
    kept.local, gone.local = 1, 1
    table.drop_local(gone.id)
    assert table.take_uncovered() == [kept]
    assert table.take_uncovered() == []


def test_settling_tells_each_waiter_once() -> None:
    told: list[int] = []

    class Waiter:
        def notify(self, entry: Entry) -> None:
            told.append(entry.state)

    entry = Entry(b"x")
    entry.waiters = [Waiter(), Waiter()]
    entry.settle(INLINE, b"value")
    entry.settle(FAILED, b"late")
    assert told == [INLINE, INLINE]


@pytest.mark.parametrize("needed", [True, False])
def test_a_process_is_needed_while_others_hold_its_objects(needed: bool) -> None:
    table = ObjectTable()
    entry = owned(table, 1)
    if needed:
        table.add_borrower(entry.id, OTHER)
    assert table.is_needed() is needed


class OwnerAndBorrowers(RuleBasedStateMachine):
    """One owned object, several borrowers, messages in any order: against a model that
    counts holders."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ObjectTable()
        self.entry = owned(self.table, 1, local=0)
        self.entry.pins = 1  # the test's own hold, so that rules may begin from nothing
        self.local = 0
        self.pins = 1
        self.messages: list[tuple[str, bytes]] = []
        self.balance: dict[bytes, int] = {}

    @precondition(lambda self: self.alive)
    @rule()
    def a_ref_is_made(self) -> None:
        self.entry.local += 1
        self.local += 1

    @precondition(lambda self: self.local)
    @rule()
    def a_ref_is_dropped(self) -> None:
        self.local -= 1
        self.table.drop_local(self.entry.id)

    @precondition(lambda self: self.alive)
    @rule()
    def a_task_takes_it(self) -> None:
        self.entry.pins += 1
        self.pins += 1

    @precondition(lambda self: self.pins)
    @rule()
    def a_task_ends(self) -> None:
        self.pins -= 1
        self.table.unpin([self.entry])

    @precondition(lambda self: self.alive)
    @rule(who=st.sampled_from([b"a" * 16, b"b" * 16]))
    def a_borrower_comes_and_goes(self, who: bytes) -> None:
        """Both messages are on their way, perhaps on different connections."""
        self.messages += [("add", who), ("remove", who)]

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.messages) - 1))
        kind, who = self.messages.pop(index)
        if not self.alive:
            return
        self.balance[who] = self.balance.get(who, 0) + (1 if kind == "add" else -1)
        if kind == "add":
            self.table.add_borrower(self.entry.id, who)
            self.table.release(self.entry)
        else:
            self.table.remove_borrower(self.entry.id, who, 1)

    @rule()
    def nothing_happens(self) -> None:
        """A history may end early: a freed object does not come back."""

    @property
    def alive(self) -> bool:
        return not self.table.freed

    @invariant()
    def it_lives_exactly_while_something_holds_it(self) -> None:
        held = self.local or self.pins or any(self.balance.values())
        assert bool(held) is self.alive


TestOwnerAndBorrowers = OwnerAndBorrowers.TestCase
TestOwnerAndBorrowers.settings = settings(max_examples=60, stateful_step_count=30)
