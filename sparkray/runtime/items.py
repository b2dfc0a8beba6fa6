"""The items of streams, for their consumers: threads that wait, and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sparkray.exceptions import GetTimeoutError, SparkrayError
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.streams import Stream
from sparkray.runtime.submit import Submitter
from sparkray.runtime.waiter import LONGEST_S, LoopWaiter, Waiter
from sparkray.runtime.waits import Waits

_NEXT: Final = "the next item of a generator"
_W = TypeVar("_W", Waiter, LoopWaiter)


class Items:
    """Takes items from streams of this process.

    Args:
        waits: for the next item.
    """

    def __init__(
        self,
        shared: Shared,
        submitter: Submitter,
        waits: Waits,
    ) -> None:
        self._shared = shared
        self._submitter = submitter
        self._waits = waits
        self._ended = False

    def close(self) -> None:
        self._ended = True

    def next(self, stream: Stream, timeout_s: float | None) -> ObjectRef | None:
        """Return the next item's ref; None after the last.

        Raises:
            GetTimeoutError: no item in time.
            SparkrayError: the session that the stream belongs to has ended.
        """
        self._submitter.flush()
        deadline = None
        if timeout_s is not None and timeout_s < LONGEST_S:
            deadline = time.monotonic() + timeout_s
        while True:
            ref, waiter = self._take_or_watch(stream, _new_waiter)
            if waiter is None:
                return ref
            left_s = None if deadline is None else deadline - time.monotonic()
            if not self._waits.wait_for(waiter, left_s, lambda: _NEXT):
                self._unwatch(stream, waiter)
                raise GetTimeoutError(timeout_s or 0.0, _NEXT)

    async def next_async(self, stream: Stream) -> ObjectRef | None:
        """Return the next item's ref; None after the last.

        No thread waits; one that is cancelled has taken nothing.

        Raises:
            SparkrayError: the session that the stream belongs to has ended.
        """
        self._submitter.flush()
        loop = asyncio.get_running_loop()
        while True:
            ref, waiter = self._take_or_watch(stream, lambda: LoopWaiter(loop))
            if waiter is None:
                return ref
            try:
                with self._shared.blocking():
                    await waiter.came.wait()
            finally:
                self._unwatch(stream, waiter)

    def _take_or_watch(
        self, stream: Stream, make: Callable[[], _W]
    ) -> tuple[ObjectRef | None, _W | None]:
        """Return what `next` returns, and None; or a new waiter, which will hear."""
        with self._shared.lock:
            if self._ended or not stream.completed_id.startswith(self._shared.prefix):
                raise SparkrayError(
                    "the generator belongs to a session that has ended;"
                    " call its task again"
                )
            entry = stream.take()
            if entry is not None:
                entry.local += 1
                entry.pins -= 1
                self._submitter.streams.note_taken(stream)
                return ObjectRef(entry.id), None
            if stream.total is not None:
                return None, None
            waiter = make()
            stream.waiters.append(waiter)
            return None, waiter

    def _unwatch(self, stream: Stream, waiter: Any) -> None:
        with self._shared.lock, contextlib.suppress(ValueError):  # it was told
            stream.waiters.remove(waiter)


def _new_waiter() -> Waiter:
    return Waiter(1, stop_on_failure=False)
