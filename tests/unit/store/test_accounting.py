"""The store's table: rules by example, and all of them under random histories."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from sparkray.exceptions import ObjectStoreFullError
from sparkray.store.state.accounting import Accounting
from sparkray.store.state.actions import (
    Action,
    DeleteFile,
    Grant,
    Pinned,
    Refused,
    Remove,
    Restore,
    Spill,
    Verify,
)
from sparkray.store.state.objects import ObjectState

PAGE = 4096


def grants(actions: list[Action]) -> list[Grant]:
    return [action for action in actions if isinstance(action, Grant)]


def put(table: Accounting, client: str, object_id: bytes, pages: int) -> list[Action]:
    _, actions = table.create(client, object_id, pages * PAGE)
    return actions + table.seal(client, object_id, b"owner")


def test_an_object_larger_than_the_store_is_refused_at_once() -> None:
    table = Accounting(10 * PAGE, 1.0)
    with pytest.raises(ObjectStoreFullError, match="larger than the store"):
        table.create("a", b"x", 11 * PAGE)


def test_a_freed_segment_is_given_to_the_next_object_of_its_size() -> None:
    table = Accounting(10 * PAGE, 1.0)
    first = grants(put(table, "a", b"x", 4))[0]
    assert table.free([b"x"]) == []
    assert (table.used_bytes, table.warm_bytes) == (0, 4 * PAGE)
    second = grants(put(table, "a", b"y", 4))[0]
    assert (second.segment, second.fresh) == (first.segment, False)


def test_a_pinned_segment_is_not_reused_after_its_object_was_freed() -> None:
    table = Accounting(10 * PAGE, 1.0)
    first = grants(put(table, "a", b"x", 4))[0]
    table.pin("reader", b"x")
    table.free([b"x"])
    assert table.used_bytes == 4 * PAGE
    second = grants(put(table, "a", b"y", 4))[0]
    assert second.segment != first.segment
    table.unpin("reader", [b"x"])
    assert grants(put(table, "a", b"z", 4))[0].segment == first.segment


def test_a_segment_of_a_process_that_left_without_a_word_is_never_reused() -> None:
    table = Accounting(10 * PAGE, 1.0)
    first = grants(put(table, "a", b"x", 4))[0]
    table.pin("reader", b"x")
    table.free([b"x"])
    removal = Remove(first.segment, 4 * PAGE, unmapped=False)
    assert table.forget_client("reader") == [removal]


def test_copies_are_dropped_before_primaries_are_spilled() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"primary", 4)
    table.create("agent", b"copy", 4 * PAGE, primary=False)
    table.seal("agent", b"copy", b"owner")
    actions = put(table, "a", b"new", 4)
    assert not [action for action in actions if isinstance(action, Spill)]
    assert table.state_of(b"copy") is None
    assert table.state_of(b"primary") is ObjectState.SEALED


def test_the_least_recently_used_primary_is_spilled_first() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"old", 4)
    put(table, "a", b"new", 4)
    table.pin("reader", b"old")
    table.unpin("reader", [b"old"])
    _, actions = table.create("a", b"third", 4 * PAGE)
    assert [a.object_id for a in actions if isinstance(a, Spill)] == [b"new"]
    assert not grants(actions)
    assert len(grants(table.spilled(1))) == 1


def test_above_the_high_water_mark_idle_objects_go_to_disk() -> None:
    table = Accounting(10 * PAGE, 0.5)
    put(table, "a", b"x", 4)
    actions = put(table, "a", b"y", 4)
    assert [a.object_id for a in actions if isinstance(a, Spill)] == [b"x"]
    table.spilled(1)
    assert table.used_bytes == 4 * PAGE


def test_waiting_creates_are_served_in_order() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.pin("reader", b"x")
    first, actions = table.create("a", b"big", 9 * PAGE)
    second, more = table.create("a", b"small", PAGE)
    assert not grants(actions + more)
    assert [g.ticket for g in grants(table.unpin("reader", [b"x"]))] == []
    served = grants(table.spilled(1))
    assert [grant.ticket for grant in served] == [first, second]


def test_a_create_that_gives_up_lets_the_next_one_pass() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.pin("reader", b"x")
    first, _ = table.create("a", b"big", 9 * PAGE)
    second, _ = table.create("a", b"small", PAGE)
    assert [grant.ticket for grant in grants(table.give_up(first))] == [second]


def test_a_pin_on_a_spilled_object_restores_it_and_its_file_is_kept() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.create("a", b"y", 8 * PAGE)
    table.spilled(1)
    table.seal("a", b"y", b"owner")
    ticket, actions = table.pin("reader", b"x")
    assert [a.object_id for a in actions if isinstance(a, Spill)] == [b"y"]
    (restore,) = [a for a in table.spilled(2) if isinstance(a, Restore)]
    (pinned,) = [a for a in table.restored(restore.ticket) if isinstance(a, Pinned)]
    assert (pinned.ticket, pinned.size_bytes) == (ticket, 8 * PAGE)
    table.unpin("reader", [b"x"])
    assert not [a for a in put(table, "a", b"z", 8) if isinstance(a, Spill)]
    assert DeleteFile(1) in table.free([b"x"])


def spilled_behind_a_pinned_one() -> tuple[Accounting, int, int]:
    """Return a table with x on disk and y pinned in its place, a pin on x, the ticket
    of its check."""
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.create("a", b"y", 8 * PAGE)
    table.spilled(1)
    table.seal("a", b"y", b"owner")
    table.pin("reader", b"y")
    pin, actions = table.pin("reader", b"x")
    (check,) = actions
    assert isinstance(check, Verify) and check.file == 1
    return table, pin, check.ticket


def test_a_spilled_object_that_finds_no_room_is_read_where_it_is() -> None:
    table, pin, check = spilled_behind_a_pinned_one()
    assert table.restored(check) == [Pinned(pin, 0, 8 * PAGE, file=1)]
    second, actions = table.pin("other", b"x")
    assert actions == [Pinned(second, 0, 8 * PAGE, file=1)]
    table.unpin("reader", [b"x"])
    table.unpin("other", [b"x"])
    table.unpin("reader", [b"y"])
    _, actions = table.pin("reader", b"x")
    assert [type(action) for action in actions] == [Spill]  # of y: there is room again


def test_a_file_that_is_read_where_it_is_goes_with_its_last_reader() -> None:
    table, _, check = spilled_behind_a_pinned_one()
    table.restored(check)
    assert table.free([b"x"]) == []
    assert table.forget_client("reader") == [DeleteFile(1)]


def test_a_file_that_fails_its_check_loses_its_object() -> None:
    table, pin, check = spilled_behind_a_pinned_one()
    deleted, refused = table.restore_failed(check, lost=True)
    assert deleted == DeleteFile(1)
    assert isinstance(refused, Refused) and refused.ticket == pin
    assert table.state_of(b"x") is None


def test_an_object_written_twice_keeps_its_first_copy() -> None:
    table = Accounting(10 * PAGE, 1.0)
    first = grants(put(table, "a", b"x", 2))[0]
    assert grants(put(table, "b", b"x", 2))[0].segment != first.segment
    _, actions = table.pin("reader", b"x")
    assert [a.segment for a in actions if isinstance(a, Pinned)] == [first.segment]
    assert table.used_bytes == 2 * PAGE


def test_an_object_freed_while_it_is_written_is_dropped_when_sealed() -> None:
    table = Accounting(10 * PAGE, 1.0)
    table.create("a", b"x", PAGE)
    table.free([b"x"])
    table.seal("a", b"x", b"owner")
    assert table.state_of(b"x") is None and table.used_bytes == 0


def test_after_a_failed_spill_nothing_is_spilled_until_it_is_allowed() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.create("a", b"y", 8 * PAGE)
    assert table.spill_failed(1) == []
    assert [type(action) for action in table.allow_spilling()] == [Spill]


def test_a_full_store_says_what_takes_its_room() -> None:
    table = Accounting(10 * PAGE, 1.0)
    put(table, "a", b"x", 8)
    table.pin("reader", b"x")
    table.create("a", b"y", 8 * PAGE)
    text = table.describe()
    assert "32768 bytes in 1 object in use by readers" in text
    assert "waiting: 1 request" in text
    table.free([b"x"])
    assert "32768 bytes of freed objects that are still in use" in table.describe()


CLIENTS = st.sampled_from(["a", "b", "c"])
OBJECTS = st.sampled_from([bytes([n]) for n in range(6)])
LIMIT = 12 * PAGE


class StoreHistory(RuleBasedStateMachine):
    """Carries out actions on a model of files and checks what must always hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Accounting(LIMIT, 0.75)
        self.content: dict[int, object] = {}  # segment -> what was written last
        self.capacity: dict[int, int] = {}
        self.files: dict[int, object] = {}
        self.spills: list[Spill] = []
        self.restores: list[Restore] = []
        self.checks: list[Verify] = []
        self.waiting: dict[int, tuple[str, str, bytes]] = {}
        self.writing: dict[tuple[str, bytes], int] = {}
        self.held: dict[tuple[str, bytes], list[tuple[int, object]]] = defaultdict(list)
        self.version = 0

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Grant(ticket, segment, capacity, fresh):
                    self._take(segment, capacity, fresh)
                    _, client, object_id = self.waiting.pop(ticket)
                    self.writing[client, object_id] = segment
                    self.version += 1
                    self.content[segment] = (object_id, self.version)
                case Pinned(ticket, segment, _, file):
                    _, client, object_id = self.waiting.pop(ticket)
                    segment = -file if file else segment
                    content = self._content(segment)
                    assert content[0] == object_id  # type: ignore[index]
                    self.held[client, object_id].append((segment, content))
                case Refused(ticket, _):
                    self.waiting.pop(ticket, None)
                case Remove(segment, _, unmapped):
                    assert not (unmapped and self._is_used(segment))
                    del self.capacity[segment], self.content[segment]
                case Spill():
                    self.spills.append(action)
                case Restore():
                    self._take(action.segment, action.capacity_bytes, action.fresh)
                    self.content[action.segment] = ("restoring", 0)
                    self.restores.append(action)
                case Verify():
                    assert action.file in self.files
                    self.checks.append(action)
                case DeleteFile(file):
                    assert not self._is_used(-file)
                    self.files.pop(file, None)

    def _content(self, segment: int) -> object:
        """Return what a segment holds; a negative number is that of a file."""
        return self.files[-segment] if segment < 0 else self.content[segment]

    def _take(self, segment: int, capacity: int, fresh: bool) -> None:
        assert (segment not in self.capacity) == fresh
        assert not self._is_used(segment)
        self.capacity[segment] = capacity
        assert sum(self.capacity.values()) <= LIMIT

    def _is_used(self, segment: int) -> bool:
        pinned = {number for held in self.held.values() for number, _ in held}
        busy = {s.segment for s in self.spills} | {r.segment for r in self.restores}
        return segment in pinned | busy | set(self.writing.values())

    @rule(
        client=CLIENTS, object_id=OBJECTS, pages=st.integers(1, 13), copy=st.booleans()
    )
    def create(self, client: str, object_id: bytes, pages: int, copy: bool) -> None:
        if (client, object_id) in self.writing or any(
            wish == ("create", client, object_id) for wish in self.waiting.values()
        ):
            return
        if pages * PAGE > LIMIT:
            with pytest.raises(ObjectStoreFullError):
                self.table.create(client, object_id, pages * PAGE)
            return
        ticket, actions = self.table.create(
            client, object_id, pages * PAGE, primary=not copy
        )
        self.waiting[ticket] = ("create", client, object_id)
        self.do(actions)

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), good=st.booleans())
    def finish_writing(self, data: st.DataObject, good: bool) -> None:
        client, object_id = data.draw(st.sampled_from(sorted(self.writing)))
        del self.writing[client, object_id]
        if good:
            self.do(self.table.seal(client, object_id, b"owner"))
        else:
            self.do(self.table.abort(client, object_id))

    @rule(client=CLIENTS, object_id=OBJECTS)
    def pin(self, client: str, object_id: bytes) -> None:
        if self.table.state_of(object_id) is None:
            with pytest.raises(KeyError):
                self.table.pin(client, object_id)
            return
        ticket, actions = self.table.pin(client, object_id)
        self.waiting[ticket] = ("pin", client, object_id)
        self.do(actions)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        held = sorted(key for key, pins in self.held.items() if pins)
        client, object_id = data.draw(st.sampled_from(held))
        self.held[client, object_id].pop()
        self.do(self.table.unpin(client, [object_id]))

    @rule(object_id=OBJECTS)
    def free(self, object_id: bytes) -> None:
        self.do(self.table.free([object_id]))

    @precondition(lambda self: self.spills)
    @rule(data=st.data(), good=st.booleans())
    def finish_spill(self, data: st.DataObject, good: bool) -> None:
        spill = data.draw(st.sampled_from(self.spills))
        self.spills.remove(spill)
        if good:
            self.files[spill.file] = self.content[spill.segment]
            self.do(self.table.spilled(spill.file))
        else:
            self.do(self.table.spill_failed(spill.file))

    @rule()
    def allow_spilling(self) -> None:
        self.do(self.table.allow_spilling())

    @precondition(lambda self: self.restores)
    @rule(data=st.data(), outcome=st.sampled_from(["good", "lost", "no room"]))
    def finish_restore(self, data: st.DataObject, outcome: str) -> None:
        restore = data.draw(st.sampled_from(self.restores))
        self.restores.remove(restore)
        if outcome == "good":
            self.content[restore.segment] = self.files[restore.file]
            self.do(self.table.restored(restore.ticket))
        else:
            lost = outcome == "lost"
            self.do(self.table.restore_failed(restore.ticket, lost=lost))

    @precondition(lambda self: self.checks)
    @rule(data=st.data(), good=st.booleans())
    def finish_check(self, data: st.DataObject, good: bool) -> None:
        check = data.draw(st.sampled_from(self.checks))
        self.checks.remove(check)
        if good:
            self.do(self.table.restored(check.ticket))
        else:
            self.do(self.table.restore_failed(check.ticket, lost=True))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[ticket]
        self.do(self.table.give_up(ticket))

    @rule(client=CLIENTS)
    def forget_client(self, client: str) -> None:
        for key in [key for key in self.held if key[0] == client]:
            del self.held[key]
        for key in [key for key in self.writing if key[0] == client]:
            del self.writing[key]
        self.do(self.table.forget_client(client))

    @rule()
    def remove_idle(self) -> None:
        self.do(self.table.remove_idle_segments())

    @invariant()
    def never_over_the_limit(self) -> None:
        used, warm = self.table.used_bytes, self.table.warm_bytes
        assert used + warm == sum(self.capacity.values()) <= LIMIT

    @invariant()
    def what_is_pinned_never_changes(self) -> None:
        for held in self.held.values():
            for segment, content in held:
                assert self._content(segment) == content

    def teardown(self) -> None:
        """With everybody gone and everything freed, nothing is used or waited for."""
        for client in ("a", "b", "c"):
            self.forget_client(client)
        for number in range(6):
            self.do(self.table.free([bytes([number])]))
        while self.spills or self.restores or self.checks:
            for check in list(self.checks):
                self.checks.remove(check)
                self.do(self.table.restored(check.ticket))
            for spill in list(self.spills):
                self.spills.remove(spill)
                self.files[spill.file] = None
                self.do(self.table.spilled(spill.file))
            for restore in list(self.restores):
                self.restores.remove(restore)
                self.do(self.table.restored(restore.ticket))
        assert self.table.used_bytes == 0 and self.table.waiting == 0
        assert not self.files and not self.waiting
        self.do(self.table.remove_idle_segments())
        self.do(self.table.remove_idle_segments())
        assert not self.capacity


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
