"""Objects under a prefix of ids that nobody takes any more."""

from __future__ import annotations

from sparkray.store.state.accounting import Accounting

PAGE = 4096
OWNER, OTHER = b"o" * 16, b"p" * 16
PREFIX = OWNER + b"\0\0\0\0\0\0\0\7"


def put(table: Accounting, object_id: bytes, *, primary: bool = True) -> None:
    table.create("writer", object_id, PAGE, primary=primary)
    table.seal("writer", object_id, OWNER)


def test_closing_frees_what_is_under_the_prefix_and_not_kept() -> None:
    table = Accounting(10 * PAGE, 1.0)
    kept, stray, other = PREFIX + b"kept", PREFIX + b"gone", OTHER + b"\0" * 12
    for object_id in (kept, stray, other):
        put(table, object_id)
    table.close_inbox(PREFIX, {kept})
    assert table.state_of(stray) is None
    assert table.state_of(kept) and table.state_of(other)


def test_what_is_being_written_or_comes_later_is_dropped_when_it_is_sealed() -> None:
    table = Accounting(10 * PAGE, 1.0)
    begun, late = PREFIX + b"begu", PREFIX + b"late"
    table.create("writer", begun, PAGE)
    table.close_inbox(PREFIX, set())
    table.seal("writer", begun, OWNER)
    put(table, late)
    assert table.state_of(begun) is None and table.state_of(late) is None
    assert table.used_bytes == 0


def test_copies_of_what_another_node_keeps_are_taken_after_the_closing() -> None:
    table = Accounting(10 * PAGE, 1.0)
    kept = PREFIX + b"kept"
    table.close_inbox(PREFIX, {kept})
    put(table, kept, primary=False)
    assert table.state_of(kept)


def test_nothing_is_remembered_of_an_owner_that_is_gone() -> None:
    table = Accounting(10 * PAGE, 1.0)
    table.close_inbox(PREFIX, set())
    table.forget_inboxes(OTHER)
    put(table, PREFIX + b"late")
    assert table.state_of(PREFIX + b"late") is None
    table.forget_inboxes(OWNER)
    put(table, PREFIX + b"more")
    assert table.state_of(PREFIX + b"more")
