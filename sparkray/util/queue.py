"""`Queue`: first in, first out, between any processes of the cluster.

The items lie in an async actor: a `get` that waits there holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.util.deadlines import limit_of
from sparkray.words import counted

__all__ = ["Empty", "Full", "Queue"]

#: So many producers and consumers can wait at a time.
_MAX_WAITING: Final = 100_000


class Empty(queue.Empty):
    """There was no item, or none in time."""


class Full(queue.Full):
    """There was no room, or none in time."""


class Queue:
    """A queue whose items any process can put and get.  Send it, store it: it is a
    handle, and the items live as long as one of its copies.

    An `ObjectRef` that is put is replaced by its value, as in every call of an actor;
    one inside a list stays a ref.

    Args:
        maxsize: how many items it holds at most; 0 or less: no limit.
        actor_options: options of the actor that holds the items.

    Raises:
        TypeError, ValueError: wrong options.
    """

    def __init__(
        self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be a whole number, not {maxsize!r}")
        self.maxsize = maxsize
        options = {"max_concurrency": _MAX_WAITING, **(actor_options or {})}
        self.actor = sparkray.remote(_Items).options(**options).remote(maxsize)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, waiting for room.

        Args:
            block: False: do not wait.
            timeout: seconds to wait; None: no limit.

        Raises:
            Full: no room, or none in time.
            TypeError, ValueError: no timeout, or a negative one.
        """
        _check(_wait(self.actor.put.remote(item, _limit(block, timeout))), Full)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item, waiting for one.

        Args:
            block: False: do not wait.
            timeout: seconds to wait; None: no limit.

        Raises:
            Empty: no item, or none in time.
            TypeError, ValueError: no timeout, or a negative one.
        """
        return _check(_wait(self.actor.get.remote(_limit(block, timeout))), Empty)

    async def put_async(
        self, item: Any, block: bool = True, timeout: float | None = None
    ) -> None:
        """Do as `put`, without stopping the event loop."""
        ref = self.actor.put.remote(item, _limit(block, timeout))
        _check(await _await(ref), Full)

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Do as `get`, without stopping the event loop."""
        ref = self.actor.get.remote(_limit(block, timeout))
        return _check(await _await(ref), Empty)

    def put_nowait(self, item: Any) -> None:
        """Add an item if there is room.

        Raises:
            Full: there is none.
        """
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Take the oldest item if there is one.

        Raises:
            Empty: there is none.
        """
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items, or none.

        Raises:
            Full: there is no room for all of them.
            TypeError: not an iterable.
        """
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch takes an iterable, not {items!r:.100}")
        _check(_wait(self.actor.put_batch.remote(list(items))), Full)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items, or none.

        Raises:
            Empty: there are fewer.
            TypeError, ValueError: not a number of items.
        """
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"num_items must be a whole number, not {num_items!r}")
        if num_items < 0:
            raise ValueError(f"num_items must be 0 or more, not {num_items}")
        taken: list[Any] = _check(_wait(self.actor.get_batch.remote(num_items)), Empty)
        return taken

    def qsize(self) -> int:
        """Return how many items it holds at the moment."""
        size: int = sparkray.get(self.actor.size.remote())
        return size

    def size(self) -> int:
        """Return how many items it holds at the moment."""
        return self.qsize()

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        return True  # without asking, as queues of the standard library

    def empty(self) -> bool:
        """Whether it holds nothing at the moment."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether it has no room at the moment."""
        return 0 < self.maxsize <= self.qsize()

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue; what uses it afterwards gets `ActorDiedError`.

        Args:
            force: do not wait for the calls that are on their way.
            grace_period_s: how long to wait for them, in seconds.
        """
        with contextlib.suppress(SparkrayError):
            if not force:
                sparkray.get(self.actor.size.remote(), timeout=grace_period_s)
            sparkray.kill(self.actor)

    def __repr__(self) -> str:
        return f"Queue(maxsize={self.maxsize}, actor={self.actor!r})"


class _Items:
    """The actor.  Every method answers ``(True, value)``, or ``(False, why not)``."""

    def __init__(self, maxsize: int) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def put(self, item: Any, timeout_s: float | None) -> tuple[bool, Any]:
        if timeout_s == 0 and self._queue.full():
            return False, f"it holds {self._queue.qsize()} items, no room for more"
        try:
            await asyncio.wait_for(self._queue.put(item), timeout_s or None)
        except (TimeoutError, asyncio.TimeoutError):
            return False, f"no room within {timeout_s} s"
        return True, None

    async def get(self, timeout_s: float | None) -> tuple[bool, Any]:
        if timeout_s == 0 and self._queue.empty():
            return False, "it holds no item"
        try:
            return True, await asyncio.wait_for(self._queue.get(), timeout_s or None)
        except (TimeoutError, asyncio.TimeoutError):
            return False, f"no item within {timeout_s} s"

    async def put_batch(self, items: list[Any]) -> tuple[bool, Any]:
        size, limit = self._queue.qsize(), self._queue.maxsize
        if 0 < limit < size + len(items):
            wanted = counted(len(items), "item")
            return False, f"no room for {wanted}: it holds {size} of {limit}"
        for item in items:
            self._queue.put_nowait(item)
        return True, None

    async def get_batch(self, num_items: int) -> tuple[bool, Any]:
        size = self._queue.qsize()
        if size < num_items:
            return False, f"it holds {counted(size, 'item')}, not {num_items}"
        return True, [self._queue.get_nowait() for _ in range(num_items)]

    async def size(self) -> int:
        return self._queue.qsize()


def _limit(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r:.100}")
    if not timeout >= 0:  # NaN neither
        raise ValueError(f"timeout must be 0 or more seconds, not {timeout}")
    return limit_of(timeout)


def _check(answer: tuple[bool, Any], error: type[Exception]) -> Any:
    ok, value = answer
    if not ok:
        raise error(value)
    return value


def _wait(ref: Any) -> Any:
    """Return the answer; a call whose caller is interrupted must not take an item."""
    try:
        return sparkray.get(ref)
    except Exception:
        raise
    except BaseException:
        sparkray.cancel(ref)
        raise


async def _await(ref: Any) -> Any:
    try:
        return await ref
    except asyncio.CancelledError:
        sparkray.cancel(ref)
        raise
