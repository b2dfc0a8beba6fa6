"""Items of a streaming task: in order, once, with an end."""

from sparkray.runtime.state.objects import Entry
from sparkray.runtime.state.streams import Stream


def stream() -> Stream:
    return Stream(1, b"first", backpressure=0)


def test_items_are_taken_in_the_order_they_came() -> None:
    items = stream()
    entries = [Entry(bytes([n])) for n in range(3)]
    for entry in entries:
        items.add(entry)
    assert [items.take() for _ in range(4)] == [*entries, None]


def test_a_repeated_item_is_not_new() -> None:
    items = stream()
    items.add(Entry(b"a"))
    assert not items.is_new(0) and items.is_new(1)


def test_nothing_is_new_after_the_end() -> None:
    items = stream()
    items.finish()
    assert not items.is_new(0) and items.total == 0


def test_a_stream_is_ready_when_it_has_an_item_or_an_end() -> None:
    items = stream()
    assert not items.is_ready()
    items.add(Entry(b"a"))
    assert items.is_ready()
    items.take()
    assert not items.is_ready()
    items.finish()
    assert items.is_ready()
