"""The end of a worker in good order: when it may end, and what runs before it does."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

log = logging.getLogger(__name__)

#: How long what was given to `atexit` may take.
EXIT_FUNCTIONS_S: Final = 5.0


class Departure:
    """Lets an actor end once no call of it runs; none begins once it wants to.

    Args:
        end: called once, with the reason, where the last call ended.
    """

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._running = 0
        self._reason = ""
        self._lock = threading.Lock()  #: guards the two above

    def begin(self) -> bool:
        """A call wants to begin; False: it is too late."""
        with self._lock:
            self._running += not self._reason
            return not self._reason

    def done(self) -> None:
        """A call that began has ended, and its answer is on its way."""
        with self._lock:
            self._running -= 1
            last = not self._running and self._reason
        if last:
            self._end(last)

    def want(self, reason: str) -> None:
        """The actor wants to end; the first reason counts."""
        with self._lock:
            first, self._reason = not self._reason, self._reason or reason
            now = first and not self._running
        if now:
            self._end(reason)


def run_exit_functions() -> None:
    """Run what user code gave to `atexit`, while all of sparkray still works.

    Functions that take too long take the process with them.
    """
    watch = threading.Timer(EXIT_FUNCTIONS_S, _give_up)
    watch.daemon = True
    watch.start()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    watch.cancel()


def _give_up() -> None:
    log.warning("what atexit was given still runs after %g s", EXIT_FUNCTIONS_S)
    _end_now(0)


def leave_worker(code: int) -> NoReturn:
    """End the process; skip the teardown of an interpreter that is mostly shared."""
    run_exit_functions()
    _end_now(code)


def _end_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
