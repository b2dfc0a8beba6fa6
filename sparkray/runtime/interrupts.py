"""Ctrl-C in a driver, put off while it would do harm.

Python raises `KeyboardInterrupt` between any two steps of the main thread.  In the
midst of the runtime's own work that would leave a lock held or a message half sent, and
every later call would wait for ever.  So in front of the user's handler stands one that
looks where the main thread is; at a bad moment the I/O thread tries again a little
later.  Waits, and code of users that the runtime calls, are interrupted at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from sparkray.runtime.agent_link import AgentLink
from sparkray.runtime.handlers import handler_of
from sparkray.runtime.waiter import Waiter
from sparkray.transport import channel

#: How soon an interrupt that came at a bad moment is tried again.
RETRY_S: Final = 0.001
#: It is put off no longer than this: what takes so long is a wait.
PATIENCE_S: Final = 1.0

_HERE: Final = os.path.dirname(__file__) + os.sep
_HELPERS: Final = frozenset({threading.__file__, contextlib.__file__})
_WAITS: Final[frozenset[CodeType]] = frozenset(
    {
        AgentLink.attach.__code__,
        AgentLink.wait_for.__code__,
        Waiter.wait.__code__,
        threading.Condition.wait.__code__,
    }
)


class InterruptShield:
    """Stands in front of the handler of SIGINT.  Main thread only; harmless in others.

    Args:
        loop: the runtime's I/O thread.
    """

    def __init__(self, loop: channel.IOLoop) -> None:
        self._loop = loop
        self._main = threading.main_thread().ident
        self._handler = self._interrupt
        self._behind: Callable[[int, FrameType | None], Any] | None = None
        self._since = 0.0  #: when the interrupt that is put off came, 0 for none

    def ready(self) -> None:
        """Stand there, also after others (a notebook, for each cell) set a handler."""
        known = handler_of(signal.SIGINT)
        if known is self._handler or not callable(known):
            return
        if threading.get_ident() == self._main:
            self._behind = known
            signal.signal(signal.SIGINT, self._handler)

    def remove(self) -> None:
        """Give the user's handler its place back."""
        if (
            handler_of(signal.SIGINT) is self._handler
            and threading.get_ident() == self._main
        ):
            signal.signal(signal.SIGINT, self._behind)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not _is_harmless(frame) and not 0 < self._since < now - PATIENCE_S:
            self._since = self._since or now
            self._loop.post(lambda: self._loop.call_later(RETRY_S, self._again))
            return
        self._since = 0.0
        if self._behind is not None:
            self._behind(number, frame)

    def _again(self) -> None:
        """On the I/O thread."""
        if self._main is not None and self._since:
            signal.pthread_kill(self._main, signal.SIGINT)


def _is_harmless(frame: FrameType | None) -> bool:
    """May an exception arise at the step that ``frame`` is about to do?"""
    innermost = frame
    while frame is not None and frame.f_code.co_filename in _HELPERS:
        frame = frame.f_back
    if frame is None or innermost is None:
        return True
    path = frame.f_code.co_filename
    ours = path.startswith(_HERE) or path == channel.__file__
    return not ours or frame.f_code in _WAITS or innermost.f_code in _WAITS
