"""What `map_batches` refuses, and what it says then."""

from __future__ import annotations

from typing import Any

import pytest

from sparkray.spark.state.batch_options import BatchOptions


def same(batch: Any) -> Any:
    return batch


def plus(batch: Any, one: int, *, two: int) -> Any:
    return batch


class Model:
    def __init__(self, path: str) -> None: ...

    def __call__(self, batch: Any) -> Any:
        return batch


class NotCallable:
    pass


def generator(batch: Any) -> Any:
    yield batch


async def asynchronous(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    "given",
    [
        {"function": same},
        {"function": len, "batch_size": 1, "concurrency": 3},
        {"function": plus, "fn_args": [1], "fn_kwargs": {"two": 2}},
        {"function": Model, "fn_constructor_args": ("there",), "num_gpus": 0.5},
        {"function": Model, "fn_constructor_kwargs": {"path": "there"}},
        {"function": Model("there")},
        {"function": same, "batch_format": "pyarrow", "num_cpus": 0},
    ],
)
def test_what_can_be_called_is_taken(given: dict[str, Any]) -> None:
    assert BatchOptions(**given).function is given["function"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"function": 3}, TypeError, "fn must be a function of a batch, or a class"),
        ({"function": NotCallable}, TypeError, "NotCallable has no method __call__"),
        ({"function": generator}, TypeError, "cannot be async or a generator"),
        ({"function": asynchronous}, TypeError, "cannot be async or a generator"),
        ({"function": lambda: 1}, TypeError, "fn cannot be called with a batch"),
        ({"function": plus, "fn_args": [1]}, TypeError, "missing a required.*'two'"),
        ({"function": Model}, TypeError, "its constructor.*'path'"),
        ({"function": same, "fn_constructor_args": [1]}, ValueError, "for a class"),
        ({"function": same, "batch_size": 0}, ValueError, "batch_size must be 1"),
        (
            {"function": same, "batch_size": 1.5},
            TypeError,
            "batch_size must be a whole",
        ),
        (
            {"function": same, "batch_size": True},
            TypeError,
            "batch_size must be a whole",
        ),
        ({"function": same, "concurrency": -1}, ValueError, "concurrency must be 1"),
        ({"function": same, "batch_format": "numpy"}, ValueError, "pandas, pyarrow"),
        ({"function": same, "num_cpus": -1}, ValueError, "num_cpus must be 0 or more"),
        ({"function": same, "num_gpus": "1"}, TypeError, "num_gpus must be a number"),
        ({"function": same, "fn_args": "ab"}, TypeError, "fn_args must be a list"),
        ({"function": same, "fn_kwargs": [1]}, TypeError, "fn_kwargs must be a dict"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BatchOptions(**given)
