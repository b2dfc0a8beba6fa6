"""Who waits for objects: threads, futures and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from sparkray.runtime.state.objects import FAILED, Entry

#: No lock can be waited for longer (some hundred years): as good as no limit.
LONGEST_S: Final = threading.TIMEOUT_MAX


class Waiter:
    """One waiting thread: released when enough entries are settled, or one failed."""

    __slots__ = ("released", "remaining", "stop_on_failure")

    def __init__(self, remaining: int, *, stop_on_failure: bool) -> None:
        self.remaining = remaining
        self.stop_on_failure = stop_on_failure
        self.released = threading.Lock()
        self.released.acquire()

    def notify(self, entry: Entry) -> None:
        if self.remaining <= 0:
            return
        self.remaining -= 1
        if not self.remaining or (self.stop_on_failure and entry.state == FAILED):
            self.remaining = 0
            self.released.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Return False on time-out."""
        return self.released.acquire(timeout=-1 if timeout_s is None else timeout_s)


class FutureWaiter:
    """Completes a future once its object is there, on a thread of the resolver."""

    def __init__(self, resolve: Callable[[], None]) -> None:
        self._resolve = resolve

    def notify(self, entry: Entry) -> None:
        self._resolve()


class LoopWaiter:
    """Sets an event of an event loop.

    Attributes:
        came: the event.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.came = asyncio.Event()

    def notify(self, entry: Entry) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self.came.set)
