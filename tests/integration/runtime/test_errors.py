"""Errors of user code on their way to whoever asks for the result."""

from __future__ import annotations

import builtins
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import TaskError, WorkerCrashedError
from tests.support import Tally

pytestmark = pytest.mark.usefixtures("shared")


class TwoArguments(Exception):
    """Its ``args`` do not fit its constructor: plain unpickling would fail."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"code {code} in {where}")
        self.code, self.place = code, where


class KeywordOnly(ValueError):
    def __init__(self, *, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __str__(self) -> str:
        return f"over {self.limit}"


class OwnNew(RuntimeError):
    def __new__(cls, text: str) -> OwnNew:
        made = super().__new__(cls, text)
        made.made_by = "new"
        return made

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class HoldsLock(LookupError):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.lock = threading.Lock()
        self.note = "readable"


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class FailsToUnpickle(Exception):
    def __reduce__(self) -> Any:
        return int, ("not a number",)


#: Python 3.11 and later.
_group: Any = getattr(builtins, "ExceptionGroup", None)


def unusual(kind: str) -> Exception:
    made: dict[str, Any] = {
        "two": lambda: TwoArguments(7, "disk"),
        "keyword": lambda: KeywordOnly(limit=3),
        "new": lambda: OwnNew("odd"),
        "lock": lambda: HoldsLock("locked"),
        "text": lambda: BadText("hidden"),
        "unpickle": lambda: FailsToUnpickle("half"),
        "os": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        "group": lambda: _group("both", [ValueError("a"), HoldsLock("b")]),
    }
    return made[kind]()


@sparkray.remote
def fail(kind: str) -> None:
    raise unusual(kind)


@pytest.mark.parametrize(
    ("kind", "cls", "text", "fields"),
    [
        ("two", TwoArguments, "code 7 in disk", {"code": 7, "place": "disk"}),
        ("keyword", KeywordOnly, "over 3", {"limit": 3}),
        ("new", OwnNew, "odd", {"text": "odd", "made_by": "new"}),
        ("lock", HoldsLock, "locked", {"note": "readable"}),
        ("text", BadText, "BadText", {}),
        ("unpickle", FailsToUnpickle, "half", {}),
        ("os", FileNotFoundError, "/nowhere", {"errno": 2, "filename": "/nowhere"}),
        ("unicode", UnicodeDecodeError, "bad byte", {"start": 0, "reason": "bad byte"}),
    ],
)
def test_an_error_keeps_its_class_its_fields_and_its_text(
    kind: str, cls: type[Exception], text: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(cls) as caught:
        sparkray.get(fail.remote(kind))
    error = caught.value
    assert isinstance(error, TaskError) and text in str(error)
    assert "in fail" in str(error) and "raise unusual(kind)" in str(error)
    assert type(error.cause) is cls and error.__cause__ is error.cause
    for name, value in fields.items():
        assert getattr(error, name) == value
        assert getattr(error.cause, name) == value


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups")
def test_an_exception_group_keeps_its_members() -> None:
    with pytest.raises(_group) as caught:
        sparkray.get(fail.remote("group"))
    assert isinstance(caught.value, TaskError)
    for group in (caught.value, caught.value.cause):
        assert [type(e) for e in group.exceptions] == [ValueError, HoldsLock]
    _, rest = caught.value.split(ValueError)
    assert rest.exceptions[0].note == "readable"


def test_an_error_that_came_from_a_task_can_be_pickled_again() -> None:
    with pytest.raises(TwoArguments) as caught:
        sparkray.get(fail.remote("two"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, TwoArguments) and isinstance(again, TaskError)
    assert again.code == 7 and str(again) == str(caught.value)


def test_an_error_through_three_tasks_names_the_innermost_and_keeps_its_class() -> None:
    @sparkray.remote
    def outer(depth: int) -> Any:
        if depth:
            return sparkray.get(outer.remote(depth - 1))
        return sparkray.get(fail.remote("two"))

    with pytest.raises(TwoArguments) as caught:
        sparkray.get(outer.remote(2))
    assert caught.value.code == 7 and isinstance(caught.value, TaskError)
    assert "raise unusual(kind)" in str(caught.value)


def test_an_error_in_an_argument_is_that_of_the_task_that_made_it() -> None:
    @sparkray.remote
    def takes(first: Any, second: Any) -> None:
        raise AssertionError("must not run")

    ref = takes.remote(1, second=fail.remote("keyword"))
    with pytest.raises(KeywordOnly, match="over 3"):
        sparkray.get(ref)


def test_a_local_class_of_the_driver_is_the_same_class_when_it_comes_back() -> None:
    class Local(Exception):
        pass

    @sparkray.remote
    def raises() -> None:
        raise Local("here")

    with pytest.raises(Local, match="here"):
        sparkray.get(raises.remote())


def test_deep_recursion_is_an_error_and_the_worker_goes_on() -> None:
    @sparkray.remote
    def deep(depth: int) -> tuple[int, int]:
        def down(left: int) -> int:
            return down(left + 1)

        return (down(0), 0) if depth else (0, os.getpid())

    with pytest.raises(RecursionError):
        sparkray.get(deep.remote(1))
    assert sparkray.get(deep.remote(0))[1]


def test_a_keyboard_interrupt_of_user_code_is_an_error_not_a_cancellation() -> None:
    @sparkray.remote
    def interrupts() -> None:
        raise KeyboardInterrupt("by the user's code")

    with pytest.raises(TaskError, match="by the user's code") as caught:
        sparkray.get(interrupts.remote())
    assert isinstance(caught.value.cause, KeyboardInterrupt)


class Exploding:
    """Pickles well; unpickling raises, but only outside of the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["pid"] != os.getpid():
            raise BufferError("cannot come back")


def test_an_argument_that_cannot_be_unpickled_fails_its_task_only() -> None:
    @sparkray.remote
    def takes(value: Any) -> str:
        return "ran"

    for argument in (Exploding(), [Exploding()], sparkray.put(Exploding())):
        with pytest.raises(BufferError, match="cannot come back"):
            sparkray.get(takes.remote(argument))
    assert sparkray.get(takes.remote(1)) == "ran"


def test_a_result_that_cannot_be_unpickled_raises_at_each_get() -> None:
    @sparkray.remote
    def makes() -> Any:
        return Exploding()

    ref = makes.remote()
    for _ in range(2):
        with pytest.raises(BufferError, match="cannot come back"):
            sparkray.get(ref)


# --- what cannot be pickled ---


class Inner:
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Middle:
    def __init__(self) -> None:
        self.parts = {"inner": Inner()}


class Outer:
    def __init__(self) -> None:
        self.middle = Middle()


def test_a_lock_three_levels_below_a_closure_is_named_with_the_way_to_it() -> None:
    model = Outer()

    @sparkray.remote
    def train() -> str:
        return str(model)

    with pytest.raises(TypeError) as caught:
        train.remote()
    text = str(caught.value)
    steps = ["train", "'model'", "'middle'", "'parts'", "'inner'", "'guard'", "lock"]
    places = [text.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), text


def test_a_lock_in_an_argument_is_named_with_the_task_and_the_way_to_it() -> None:
    @sparkray.remote
    def train(*args: Any, **options: Any) -> None: ...

    for call, name in (
        (lambda: train.remote(1, [Outer()]), "argument 'args[1]'"),
        (lambda: train.remote(state=Outer()), "argument 'state'"),
        (lambda: sparkray.put([Outer()]), "item 0"),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert name in str(caught.value) and "'guard'" in str(caught.value)


def test_a_result_that_cannot_be_pickled_is_named_with_its_task() -> None:
    @sparkray.remote
    def build() -> Any:
        return {"model": Outer()}

    with pytest.raises(TypeError) as caught:
        sparkray.get(build.remote())
    for part in ("the result of", "build", "'model'", "'middle'", "'guard'"):
        assert part in str(caught.value)


# --- retries ---


def test_only_listed_errors_are_run_again_and_no_more_often_than_said(
    tmp_path: Path,
) -> None:
    @sparkray.remote(max_retries=3, retry_exceptions=[ConnectionError, TwoArguments])
    def flaky(kind: str, tally: Tally, good_from: int) -> int:
        tally.add()
        if tally.count() >= good_from:
            return tally.count()
        if kind == "listed":
            raise ConnectionResetError("a subclass of what is listed")
        if kind == "odd":
            raise TwoArguments(1, "x")
        raise ValueError("not listed")

    runs = Tally(tmp_path)
    assert sparkray.get(flaky.remote("listed", runs, 3)) == 3
    assert sparkray.get(flaky.remote("odd", Tally(tmp_path), 2)) == 2
    once = Tally(tmp_path)
    with pytest.raises(ValueError, match="not listed"):
        sparkray.get(flaky.remote("other", once, 9))
    assert once.count() == 1
    never = Tally(tmp_path)
    with pytest.raises(ConnectionError):
        sparkray.get(flaky.remote("listed", never, 9))
    assert never.count() == 4
    none = Tally(tmp_path)
    with pytest.raises(ConnectionError):
        sparkray.get(flaky.options(max_retries=0).remote("listed", none, 9))
    assert none.count() == 1


@pytest.mark.parametrize("code", [0, 3, "a reason", None])
def test_sys_exit_runs_once_and_says_so(tmp_path: Path, code: Any) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(max_retries=3, retry_exceptions=True)
    def leaves() -> None:
        runs.add(os.getpid())
        sys.exit(code)

    with pytest.raises(WorkerCrashedError, match=r"sys\.exit") as caught:
        sparkray.get(leaves.remote())
    assert repr(code) in str(caught.value) and "leaves" in str(caught.value)
    assert runs.count() == 1


def test_a_retry_looks_at_an_exception_that_carries_a_ref(shared: Any) -> None:
    class Carrier(Exception):
        pass

    @sparkray.remote(max_retries=1, retry_exceptions=[Carrier])
    def fails(box: list[Any]) -> None:
        raise Carrier(box[0])

    ref = sparkray.put("kept")
    with pytest.raises(Carrier):
        sparkray.get(fails.remote([ref]), timeout=30)
    assert sparkray.get(ref) == "kept"
