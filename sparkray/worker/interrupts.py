"""Cancelling the running task: SIGINT to the main thread, where it does no harm.

The handler raises in user code and in waits only (see `runtime.moments`); anywhere else
it does nothing, and the I/O thread tries again a moment later.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

from sparkray.runtime.handlers import handler_of
from sparkray.runtime.moments import WAITS, is_harmless
from sparkray.transport.channel import IOLoop

#: How soon the main thread is interrupted again, if it was found at a bad moment; twice
#: as late each time, up to the second value.
RETRY_S = 0.002
RETRY_MAX_S = 0.1

#: So long a cancelled task may finish an import: one that is broken off half-way leaves
#: modules in the process that later tasks stumble over.
IMPORT_S = 5.0
_IMPORTING = "<frozen importlib._bootstrap>"

_ROOT = os.path.dirname(os.path.dirname(__file__))
#: What must not be interrupted: the parts beneath the libraries.  Those call code of
#: users themselves, as `sparkray.util.futures` does, and are like it.
_OURS = tuple(
    os.path.join(_ROOT, part)
    for part in (
        *("__init__", "api", "config", "exceptions", "ids", "labels", "launch"),
        *("protocol", "resources", "runtime", "store", "transport", "words", "worker"),
    )
)


class Interrupts:
    """Stops one task of the main thread at a time.  Made on the main thread.

    Args:
        current: returns the task that the main thread is at.
        harmless: functions of ours, too, that may be interrupted at any step.
    """

    def __init__(
        self,
        loop: IOLoop,
        current: Callable[[], object],
        harmless: tuple[CodeType, ...],
    ) -> None:
        self._loop, self._current = loop, current
        self._harmless = WAITS.union(harmless)
        self._main = threading.get_ident()
        self._handler = self._interrupt
        self._running: object | None = None  #: the task whose user code may be stopped
        self._cancelled: object | None = None
        self._cancelled_s = 0.0
        self._raised: object | None = None
        self.ready()

    # --- main thread ---

    def ready(self) -> None:
        """Have the signal come here, also after a task that turned it elsewhere."""
        if handler_of(signal.SIGINT) is not self._handler:
            signal.signal(signal.SIGINT, self._handler)

    def enter(self, task: object) -> None:
        """User code of ``task`` begins."""
        self._running = task

    def leave(self) -> None:
        """User code has ended: nothing is raised any more."""
        self._running = None

    def stopped(self, task: object) -> bool:
        """Was ``task`` interrupted because it is cancelled?"""
        return self._raised is task

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        task = self._running
        if task is None or self._cancelled is not task:
            return
        if is_harmless(frame, _OURS, self._harmless) and not self._imports(frame):
            self._cancelled, self._raised = None, task
            raise KeyboardInterrupt("the task was cancelled")

    def _imports(self, frame: FrameType | None) -> bool:
        """Tell whether an import is under way that there is still time for."""
        if time.monotonic() - self._cancelled_s > IMPORT_S:
            return False
        while frame is not None:
            if frame.f_code.co_filename == _IMPORTING:
                return True
            frame = frame.f_back
        return False

    # --- I/O thread ---

    def cancel(self, task: object) -> None:
        """Interrupt ``task``, which is the main thread's current one."""
        self._cancelled_s = time.monotonic()
        self._cancelled = task
        self._strike(task, RETRY_S)

    def _strike(self, task: object, retry_s: float) -> None:
        if self._cancelled is not task or self._current() is not task:
            return
        signal.pthread_kill(self._main, signal.SIGINT)
        later_s = min(2 * retry_s, RETRY_MAX_S)
        self._loop.call_later(retry_s, lambda: self._strike(task, later_s))
