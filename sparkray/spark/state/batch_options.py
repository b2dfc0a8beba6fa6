"""The arguments of `map_batches`, checked.  Pure."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FORMATS: Final = ("pandas", "pyarrow")


@dataclass(frozen=True)
class BatchOptions:
    """What `sparkray.spark.map_batches` was asked for.

    Raises:
        TypeError, ValueError: a wrong argument; says which, and what it may be.
    """

    function: Any
    batch_size: int | None = None
    concurrency: int | None = None
    batch_format: str = "pandas"
    fn_args: Sequence[Any] = ()
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fn_constructor_args: Sequence[Any] = ()
    fn_constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_cpus: float = 1
    num_gpus: float = 0

    def __post_init__(self) -> None:
        self._check_function()
        _check_count("batch_size", self.batch_size, " or None: a whole partition")
        _check_count("concurrency", self.concurrency, " or None")
        if self.batch_format not in FORMATS:
            raise ValueError(
                f"batch_format must be one of {', '.join(FORMATS)}, not"
                f" {self.batch_format!r}"
            )
        for name in ("num_cpus", "num_gpus"):
            _check_amount(name, getattr(self, name))
        for name in ("fn_args", "fn_constructor_args"):
            given = getattr(self, name)
            if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
                raise TypeError(f"{name} must be a list or tuple, not {given!r:.100}")
        for name in ("fn_kwargs", "fn_constructor_kwargs"):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise TypeError(f"{name} must be a dict, not {given!r:.100}")
        if not self.is_class and (
            self.fn_constructor_args or self.fn_constructor_kwargs
        ):
            raise ValueError("fn_constructor_args are for a class; fn is a function")
        self._check_signatures()

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.function)

    def _check_function(self) -> None:
        function = self.function
        if not callable(function):
            raise TypeError(
                "fn must be a function of a batch, or a class whose objects are called"
                f" with one, not {function!r:.100}"
            )
        if self.is_class and "__call__" not in _names_of(function):
            raise TypeError(
                f"class {function.__name__} has no method __call__(self, batch)"
            )
        called = function.__call__ if self.is_class else function
        if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
            raise TypeError("fn must return a batch: it cannot be async or a generator")

    def _check_signatures(self) -> None:
        batch = object()
        if self.is_class:
            args, kwargs = self.fn_constructor_args, self.fn_constructor_kwargs
            _check_call(self.function, args, kwargs, "the class", "its constructor")
            call: Callable[..., Any] = self.function.__call__
            args = (object(), batch, *self.fn_args)
        else:
            call, args = self.function, (batch, *self.fn_args)
        _check_call(call, args, self.fn_kwargs, "fn", "a batch")


def _names_of(kind: type) -> set[str]:
    return {name for base in kind.__mro__[:-1] for name in vars(base)}


def _check_count(name: str, value: object, other: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number{other}, not {value!r:.100}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more{other}, not {value}")


def _check_amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r:.100}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more, not {value}")


def _check_call(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    what: str,
    given: str,
) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # made in C: the call itself will tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{what} cannot be called with {given}: {error}") from None
