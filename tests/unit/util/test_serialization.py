import io
import threading
from typing import Any

import pytest

from sparkray.store.serialize import serialize
from sparkray.util.serialization import inspect_serializability


def test_what_can_be_sent_has_no_failures(capsys: Any) -> None:
    for value in (1, [1, 2], lambda: 1, ValueError("x"), inspect_serializability):
        assert inspect_serializability(value) == (True, set())
    assert capsys.readouterr() == ("", "")


def test_the_part_that_fails_is_named_with_the_way_to_it(capsys: Any) -> None:
    lock = threading.Lock()

    class Holder:
        def __init__(self) -> None:
            self.fine, self.guard = 1, lock

    holder = Holder()

    def function() -> Any:
        return holder

    ok, failures = inspect_serializability(function, "job")
    (failure,) = failures
    assert not ok and failure.obj is lock and failure.parent is holder
    assert failure.name == "attribute 'guard'"
    assert failure.path == ("job", "closure variable 'holder'", "attribute 'guard'")
    assert isinstance(failure.error, TypeError) and "lock" in str(failure)
    assert capsys.readouterr() == ("", "")


def test_a_value_that_fails_by_itself_has_no_parent() -> None:
    ok, failures = inspect_serializability(threading.Lock())
    assert not ok and next(iter(failures)).parent is None


@pytest.mark.parametrize(("value", "text"), [(1, "can be sent"), (..., "")])
def test_it_prints_where_it_is_told(value: Any, text: str) -> None:
    file = io.StringIO()
    inspect_serializability(value, print_file=file)
    assert text in file.getvalue()
    file = io.StringIO()
    inspect_serializability(threading.Lock(), "guard", print_file=file)
    assert file.getvalue().startswith("guard: ") and "lock" in file.getvalue()


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_a_value_whose_own_code_raises_is_a_failure_like_others() -> None:
    hostile = Hostile()
    for value in (hostile, [1, {"a": hostile}]):
        ok, failures = inspect_serializability(value)
        (failure,) = failures
        assert not ok and failure.obj is hostile
    with pytest.raises(TypeError, match="Hostile"):
        serialize(hostile)
