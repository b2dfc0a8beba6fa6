"""An argument that cannot be sent is named by its parameter, and what in it fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import sparkray

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote
def add(first: Any, second: Any = None, *rest: Any, **named: Any) -> None: ...


@sparkray.remote
class Holder:
    def __init__(self, held: Any = None) -> None: ...

    def hold(self, held: Any) -> None: ...


CALLS = {
    "argument 'first' of add: ": lambda bad: add.remote(bad),
    "argument 'second' of add -> item 1: ": lambda bad: add.remote(1, [2, bad]),
    "argument 'rest[1]' of add: ": lambda bad: add.remote(1, 2, 3, bad),
    "argument 'extra' of add -> value of key 'k': ": lambda bad: add.remote(
        1, extra={"k": bad}
    ),
    "argument 'held' of Holder.__init__: ": lambda bad: Holder.remote(bad),
    "argument 'held' of Holder.hold: ": lambda bad: Holder.remote().hold.remote(bad),
}


@pytest.mark.parametrize("said", CALLS)
def test_the_way_to_what_fails_begins_with_the_parameter(said: str) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock'") as caught:
        CALLS[said](threading.Lock())
    what = said.split(" ->")[0].removesuffix(": ")
    assert str(caught.value).startswith(f"cannot serialize {what}: {said}cannot")


def test_refs_beside_it_are_let_go() -> None:
    ref = sparkray.put(1)
    with pytest.raises(TypeError, match="argument 'second' of add"):
        add.remote([ref], [ref, threading.Lock()])
    assert sparkray.get(ref) == 1
