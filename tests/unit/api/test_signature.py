from collections.abc import Callable
from typing import Any

import pytest

from sparkray.api.signature import CallSignature


def _none() -> None: ...
def _two(a: Any, b: Any = 1) -> None: ...
def _any(*rest: Any) -> None: ...
def _one_and_more(a: Any, *rest: Any, key: Any = 1) -> None: ...
def _keyword(a: Any, *, key: Any) -> None: ...
def _positional(a: Any, /, b: Any) -> None: ...
def _named(**named: Any) -> None: ...


FUNCTIONS = [_none, _two, _any, _one_and_more, _keyword, _positional, _named]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((), {"a": 1}),
    ((1,), {"a": 1}),
    ((1,), {"b": 2}),
    ((1,), {"key": 2}),
    ((1, 2), {"nope": 2}),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_a_call_is_refused_exactly_when_python_would_refuse_it(
    function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    signature = CallSignature(function, "f")
    try:
        function(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=r"^f\("):
            signature.check(args, kwargs)
        assert kwargs or not signature.fewest <= len(args) <= signature.most
    else:
        signature.check(args, kwargs)


def test_positional_calls_are_decided_by_two_numbers() -> None:
    limits = {f: CallSignature(f, "f") for f in FUNCTIONS}
    assert (limits[_none].fewest, limits[_none].most) == (0, 0)
    assert (limits[_two].fewest, limits[_two].most) == (1, 2)
    assert limits[_one_and_more].fewest == 1 < limits[_one_and_more].most
    assert limits[_keyword].fewest > limits[_keyword].most


def test_a_function_that_does_not_tell_takes_anything() -> None:
    signature = CallSignature(getattr, "getattr")
    assert signature.fewest == 0
    signature.check((1, 2, 3, 4), {"x": 5})


def test_a_default_that_is_not_known_is_shown_by_dots() -> None:
    def add(k: Any = ...) -> None: ...

    with pytest.raises(TypeError, match=r"Counter\.add\(k: .* = \.\.\.\)"):
        CallSignature(add, "Counter.add").check((1, 2), {})
