"""Tracebacks for users: their own frames, without those of sparkray in between.

The setting ``full_tracebacks`` (``SPARKRAY_FULL_TRACEBACKS=1``) leaves them alone.
"""

from __future__ import annotations

import os
import traceback
from typing import Final, TypeVar

from sparkray.exceptions import SparkrayError

_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_E = TypeVar("_E", bound=BaseException)


def without_ours(error: _E) -> _E:
    """Return the error without the frames that it went through until here."""
    if not _full():
        BaseException.with_traceback(error, None)  # a class may have its own idea of it
    return error


def text_of(error: BaseException, *, ours_too: bool = True) -> str:
    """Return the traceback of an error and of those behind it, the user's frames only.

    An error without any of those keeps all its frames: it is sparkray's own.

    Args:
        ours_too: False: not even such an error does, since sparkray raised it to tell
            the user something.
    """
    shown = traceback.TracebackException.from_exception(error)
    if not _full():
        _shorten(shown, error, ours_too=ours_too)
    return "".join(shown.format()).rstrip()


def _shorten(
    shown: traceback.TracebackException, error: BaseException, *, ours_too: bool
) -> None:
    users = [frame for frame in shown.stack if not frame.filename.startswith(_OURS)]
    if users:
        shown.stack[:] = users
    elif not ours_too:
        shown.stack = None  # type: ignore[assignment]
    cause, context = error.__cause__, error.__context__
    if shown.__cause__ is not None and cause is not None:
        if isinstance(error, SparkrayError) and cause.__traceback__ is None:
            shown.__cause__ = None  # raised elsewhere: the text says where
        else:
            _shorten(shown.__cause__, cause, ours_too=ours_too)
    if shown.__context__ is not None and context is not None:
        _shorten(shown.__context__, context, ours_too=ours_too)


def _full() -> bool:
    return os.environ.get("SPARKRAY_FULL_TRACEBACKS", "0") not in ("", "0")
