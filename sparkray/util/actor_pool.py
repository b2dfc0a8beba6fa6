"""`ActorPool`: many calls over a few actors, each busy with one at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sparkray
from sparkray.util.deadlines import deadline_after

__all__ = ["ActorPool"]


@dataclass(eq=False)
class _Call:
    """One submitted call, in the order of submission."""

    function: Callable[[Any, Any], Any]
    value: Any
    actor: Any = None  #: None until it starts, and again once it has ended
    result: Any = None  #: what the function returned: a ref, or a list of them

    @property
    def ref(self) -> Any:
        """The ref to wait for; all refs of one call are ready together."""
        return self.result[0] if isinstance(self.result, list) else self.result


class ActorPool:
    """Spreads calls over actors; a call waits until one of them is free.

    Waiting for any result also starts calls on the actors that became free meanwhile.
    Use one pool from one thread.

    Args:
        actors: handles; they may be of different classes.
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = deque(actors)
        self._waiting: deque[_Call] = deque()
        self._running: dict[Any, _Call] = {}  #: by the ref that is waited for
        self._unread: deque[_Call] = deque()  #: results not yet taken, in order
        self._is_unordered = False  #: results were taken out of order

    def map(
        self, fn: Callable[[Any, Any], Any], values: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield the results of ``fn(actor, value)`` in the order of the values.

        Results of earlier calls that nobody has taken are forgotten.

        Args:
            fn: calls a method of the actor and returns the ref.
            values: taken in whole at once.

        Raises:
            SparkrayError: when the failed call's turn comes; the others go on.
        """
        self._submit_all(fn, values)
        return self._results(self.get_next)

    def map_unordered(
        self, fn: Callable[[Any, Any], Any], values: Iterable[Any]
    ) -> Iterator[Any]:
        """Like `map`, but yield each result as soon as it is there."""
        self._submit_all(fn, values)
        return self._results(self.get_next_unordered)

    def submit(self, fn: Callable[[Any, Any], Any], value: Any) -> None:
        """Have a free actor work on ``value``, now or as soon as there is one.

        Raises:
            TypeError: ``fn`` did not return a ref.
        """
        call = _Call(fn, value)
        if self._idle and not self._waiting:
            self._start(call)
        else:
            self._waiting.append(call)
        self._unread.append(call)

    def get_next(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Return the next result in the order of submission.

        Args:
            timeout: seconds to wait; None: no limit.
            ignore_if_timedout: when time runs out, give up this result: the next call
                of `get_next` is about the one behind it.

        Raises:
            StopIteration: nothing was submitted that is not taken yet.
            TimeoutError: it is not there in time.
            ValueError: results were taken by `get_next_unordered` before.
            SparkrayError: the call failed.
        """
        call = self._first()
        if self._is_unordered:
            raise ValueError("get_next cannot follow get_next_unordered: order is lost")
        deadline = deadline_after(timeout)
        while call.result is None or call.actor is not None:
            if not self._advance(deadline):
                if ignore_if_timedout:
                    self._give_up(call)
                raise TimeoutError(f"the next result is not there after {timeout} s")
        return self._take(call)

    def get_next_unordered(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Return any result that is there, waiting for one.

        Args:
            timeout: seconds to wait; None: no limit.
            ignore_if_timedout: taken as in `get_next`; no call is given up.

        Raises:
            StopIteration, TimeoutError, SparkrayError: as `get_next`.
        """
        self._first()
        deadline = deadline_after(timeout)
        while True:
            for call in self._unread:
                if call.result is not None and call.actor is None:
                    self._is_unordered = len(self._unread) > 1
                    return self._take(call)
            if not self._advance(deadline):
                raise TimeoutError(f"no result is there after {timeout} s")

    def has_next(self) -> bool:
        """Whether there are results, or calls, that were not taken."""
        return bool(self._unread)

    def has_free(self) -> bool:
        """Whether an actor is idle and no call waits."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any:
        """Take an idle actor out of the pool and return it; None if there is none."""
        return self._idle.popleft() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor.

        Raises:
            ValueError: it is in the pool.
        """
        busy = [call.actor for call in self._running.values()]
        if actor in self._idle or actor in busy:
            raise ValueError(f"{actor!r} is in this pool already")
        self._release(actor)

    def _submit_all(self, fn: Callable[[Any, Any], Any], values: Iterable[Any]) -> None:
        self._waiting.clear()
        self._unread.clear()
        self._is_unordered = False
        for value in values:
            self.submit(fn, value)

    def _results(self, take: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield take()

    def _first(self) -> _Call:
        if not self._unread:
            raise StopIteration("no more results")
        if not self._running and not self._idle and self._unread[0].result is None:
            raise ValueError("the pool has no actors: push one")
        return self._unread[0]

    def _start(self, call: _Call) -> None:
        actor = self._idle.popleft()
        try:
            call.result = call.function(actor, call.value)
            if not isinstance(call.ref, sparkray.ObjectRef):
                raise TypeError(f"fn must return a ref, not {call.result!r:.100}")
        except BaseException:
            self._idle.appendleft(actor)
            raise
        call.actor = actor
        self._running[call.ref] = call

    def _advance(self, deadline: float | None) -> bool:
        """Wait for any running call to end; return whether one did."""
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _ = sparkray.wait(list(self._running), num_returns=1, timeout=left_s)
        for ref in ready:
            call = self._running.pop(ref)
            actor, call.actor = call.actor, None
            self._release(actor)
        return bool(ready)

    def _release(self, actor: Any) -> None:
        self._idle.append(actor)
        while self._waiting and self._idle:
            call = self._waiting.popleft()
            try:
                self._start(call)
            except BaseException:
                self._unread.remove(call)
                raise

    def _take(self, call: _Call) -> Any:
        self._unread.remove(call)
        if not self._unread:
            self._is_unordered = False
        return sparkray.get(call.result)

    def _give_up(self, call: _Call) -> None:
        self._unread.remove(call)
        if call in self._waiting:
            self._waiting.remove(call)
