"""The user's exception on its way to the owner: whole if possible, readable always."""

from __future__ import annotations

import os
import platform
import traceback
from typing import Any, Final

from sparkray.exceptions import (
    NotPicklableError,
    PortableCause,
    TaskError,
    WorkerCrashedError,
)
from sparkray.runtime import tracebacks
from sparkray.store.serialize import deserialize, serialize

_RESULTS: Final = os.path.join(os.path.dirname(__file__), "results.py")


def task_error(name: str, error: BaseException) -> bytes:
    """Return a serialized `TaskError` for what user code raised.

    Args:
        name: of the task.
        error: what it raised.
    """
    try:
        return _whole(name, error)
    except BaseException as failure:  # a class that lets nobody look at its instances
        kinds = type(error).__name__, type(failure).__name__
        text = f"{kinds[0]} (looking at it raised {kinds[1]})"
        where = f"pid={os.getpid()}, {platform.node()}"
        return serialize(TaskError(name, text, None, where)).to_bytes()


def _whole(name: str, error: BaseException) -> bytes:
    text = _traceback_text(error)
    where = f"pid={os.getpid()}, {platform.node()}"
    cause: BaseException | None = error
    if isinstance(error, TaskError):  # of a task that this one called
        cause = error.cause
    for candidate in (cause, _portable(cause)):
        made = TaskError(name, text, None, where)
        made.args = (name, text, candidate, where)
        del made.__dict__["cause"]  # unpickling sets it from the arguments
        data = _try(made, type(cause))
        if data is not None:
            return data
    return serialize(TaskError(name, text, None, where)).to_bytes()


def _try(error: TaskError, expected: type) -> bytes | None:
    """Serialize and read back: a class may pickle well and fail to unpickle."""
    try:
        data = serialize(error).to_bytes()
        back = deserialize(data)
    except BaseException:  # whatever user classes raise: the next form may do
        return None
    return data if type(back.cause) is expected else None


def _portable(cause: BaseException | None) -> PortableCause | None:
    return None if cause is None else PortableCause.of(cause, _travels)


def _travels(value: Any) -> bool:
    try:
        deserialize(serialize(value).to_bytes())
    except BaseException:
        return False
    return True


def _traceback_text(error: BaseException) -> str:
    try:
        return tracebacks.text_of(error, ours_too=not _is_of_result(error))
    except Exception as failure:  # a __str__ of the user's that raises
        return f"{type(error).__name__} (its text raised {failure!r})"


def _is_of_result(error: BaseException) -> bool:
    """Did sparkray raise it because of what the task returned?"""
    if isinstance(error, NotPicklableError):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == _RESULTS for frame, _ in frames)


def exit_error(name: str, error: SystemExit) -> bytes:
    """Return the error of a task that called ``sys.exit``: it is not run again.

    Args:
        name: name and id of the task, as in every error of its kind.
    """
    reason = f"{this_process()}: it called sys.exit({error.code!r})"
    return serialize(WorkerCrashedError(name, reason)).to_bytes()


def this_process() -> str:
    """Return what errors call this process."""
    return f"process {os.getpid()} on {platform.node()}"
