"""Threads that complete futures, also while the interpreter ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

THREADS: Final = 4


class Resolver:
    """Runs calls on a few threads, which begin with the first call.

    No `ThreadPoolExecutor`: that takes nothing more once the main thread has ended,
    when other threads may still wait for their futures.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  #: guards `_begun`
        self._begun = False

    def begin(self) -> None:
        """Start the threads.  Again is harmless."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        for number in range(THREADS):
            threading.Thread(
                target=self._run, name=f"sparkray-resolve_{number}", daemon=True
            ).start()

    def submit(self, call: Callable[[], None]) -> None:
        """Run ``call`` soon.  Any thread; takes no lock."""
        self._calls.put(call)

    def close(self) -> None:
        """End the threads once all calls were made."""
        for _ in range(THREADS):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
