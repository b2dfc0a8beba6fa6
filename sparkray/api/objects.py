"""`get`, `put`, `wait`, `cancel`: checked here, done by the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkray.api import session
from sparkray.exceptions import ObjectLostError, SparkrayError
from sparkray.runtime import core
from sparkray.runtime.ownership import ENDED_SESSION
from sparkray.runtime.refs import ObjectRef, ObjectRefGenerator
from sparkray.runtime.tracebacks import without_ours
from sparkray.runtime.waiter import LONGEST_S
from sparkray.words import counted

_GET_TAKES = "get takes an ObjectRef or a list of them"


def get(refs: ObjectRef | list[ObjectRef], *, timeout: float | None = None) -> Any:
    """Wait for an object, or for a list of them, and return the value or values.

    Large arrays and tables come back as read-only views of shared memory.

    Args:
        refs: one ref, or a list of refs; the same ref may be in it more than once.
        timeout: seconds to wait; 0 takes only what is here, None waits without end.

    Raises:
        GetTimeoutError: not all were ready in time (a built-in `TimeoutError` too).
        TaskError: the task that makes the object raised; also an instance of the class
            of the user's own exception.
        SparkrayError: the object will never exist, see `sparkray.exceptions`.
        TypeError: something else than refs.
        ValueError: a negative timeout.
    """
    timeout_s = _seconds("timeout", timeout)
    try:
        if isinstance(refs, ObjectRef):
            return _runtime_of(refs).get([refs], timeout_s)[0]
        if not isinstance(refs, list):
            raise TypeError(f"{_GET_TAKES}, {_not(refs)}")
        for ref in refs:
            if not isinstance(ref, ObjectRef):
                raise TypeError(f"{_GET_TAKES}, {_not(ref, 'item')}")
        return _runtime_of(refs[0]).get(refs, timeout_s) if refs else []
    except (SparkrayError, KeyboardInterrupt) as error:
        raise without_ours(error)  # noqa: B904 - with the cause that it has


def put(value: Any) -> ObjectRef:
    """Store a value as it is now and return a ref to it.

    Raises:
        TypeError: ``value`` is itself a ref, or cannot be pickled.
        ObjectStoreFullError: no room could be made for it.
    """
    if isinstance(value, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(
            f"put takes a value, {_not(value)}; to store a ref put it into a list"
        )
    return session.ensure_runtime().put(value)


def wait(
    refs: list[Any],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Wait until some of several objects are ready, or have failed.

    Args:
        refs: refs, or generators of refs, none of them twice.
        num_returns: how many to wait for.
        timeout: seconds to wait at most; None waits without end.
        fetch_local: taken for compatibility: waiting moves no data between nodes.

    Returns:
        at most ``num_returns`` that are ready, then all others, in the order given.

    Raises:
        TypeError: ``refs`` is not a list of refs, or a number is none.
        ValueError: a ref twice, a negative timeout, or a ``num_returns`` that is not
            between 1 and the number of refs.
    """
    if not isinstance(refs, list):
        raise TypeError(f"wait takes a list of ObjectRefs, {_not(refs)}")
    for ref in refs:
        if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(f"wait takes a list of ObjectRefs, {_not(ref, 'item')}")
    timeout_s = _seconds("timeout", timeout)
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise TypeError(f"num_returns must be a whole number, {_not(num_returns)}")
    if not refs:
        return [], []
    _check_counts(refs, num_returns)
    return _runtime_of(refs[0]).wait(refs, num_returns, timeout_s)


def cancel(
    ref: ObjectRef | ObjectRefGenerator, *, force: bool = False, recursive: bool = True
) -> None:
    """Stop the task that makes an object; `get` then raises `TaskCancelledError`.

    A task that has ended is left alone.

    Args:
        force: end its worker process instead of raising an exception inside the task.
        recursive: stop the tasks that it started, too.

    Raises:
        TypeError: ``ref`` is no ref.
    """
    if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(f"cancel takes an ObjectRef, {_not(ref)}")
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    _runtime_of(ref).cancel(ref, force=force, recursive=recursive)


def _runtime_of(ref: ObjectRef | ObjectRefGenerator) -> core.Runtime:
    """Return this process's runtime; none is made for a ref that it cannot know."""
    if session.has_left():
        known = ref.completed() if isinstance(ref, ObjectRefGenerator) else ref
        raise ObjectLostError(known.hex(), ENDED_SESSION)
    return session.ensure_runtime()


def _check_counts(refs: Sequence[Any], num_returns: int) -> None:
    distinct = len(set(refs))
    if distinct != len(refs):
        raise ValueError(
            f"wait got {counted(len(refs), 'ref')}, only {distinct} of them different"
        )
    if not 1 <= num_returns <= len(refs):
        raise ValueError(
            f"wait cannot return {num_returns} of {counted(len(refs), 'ref')}:"
            " num_returns must be between 1 and the number of refs"
        )


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, {_not(value)}")
    if not value >= 0:  # NaN neither
        raise ValueError(f"{name} must be 0 or more seconds, not {value!r}")
    return None if value >= LONGEST_S else float(value)


def _not(value: object, what: str = "value") -> str:
    return f"not the {what} {value!r:.100} of type {type(value).__name__}"
