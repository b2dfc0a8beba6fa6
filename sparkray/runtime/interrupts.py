"""Ctrl-C in a driver, put off while it would do harm.

Python raises `KeyboardInterrupt` between any two steps of the main thread.  So in front
of the user's handler stands one that looks where the main thread is (see `moments`); at
a bad one the I/O thread tries again a little later.  Waits, and code of users that the
runtime calls, are interrupted at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from sparkray.runtime.handlers import handler_of
from sparkray.runtime.moments import WAITS, is_harmless
from sparkray.transport import channel

#: How soon an interrupt that came at a bad moment is tried again.
RETRY_S: Final = 0.001
#: It is put off no longer than this: what takes so long is a wait.
PATIENCE_S: Final = 1.0

_OURS: Final = (os.path.dirname(__file__) + os.sep, channel.__file__)


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
        if (
            not is_harmless(frame, _OURS, WAITS)
            and not 0 < self._since < now - PATIENCE_S
        ):
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
