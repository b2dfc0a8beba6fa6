"""What waits to be sent down one agent's stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

#: How many log batches wait for a slow agent; more are dropped.
MAX_LOGS: Final = 1_000


class Outbox:
    """Encoded items for one stream, in order; of views only the newest.

    Used by the loop only.  Iterating yields what was put, and ends once `close` was
    called and all of it is out.
    """

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()
        self._logs = 0
        self._log_marks: deque[bool] = deque()
        self._view: bytes | None = None
        self._closed = False
        self._wake = asyncio.Event()
        self.dropped_logs = 0

    def put(self, item: bytes) -> None:
        self._add(item, is_log=False)

    def put_logs(self, item: bytes) -> None:
        if self._logs >= MAX_LOGS:
            self.dropped_logs += 1
            return
        self._logs += 1
        self._add(item, is_log=True)

    def put_view(self, item: bytes) -> None:
        self._view = item
        self._wake.set()

    def close(self) -> None:
        """End the stream once what was put is sent.  Repeatable."""
        self._closed = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._items:
                self._logs -= self._log_marks.popleft()
                yield self._items.popleft()
            if self._view is not None:
                view, self._view = self._view, None
                yield view
            elif self._closed:
                return
            elif not self._items:
                self._wake.clear()
                await self._wake.wait()

    def _add(self, item: bytes, *, is_log: bool) -> None:
        self._items.append(item)
        self._log_marks.append(is_log)
        self._wake.set()
