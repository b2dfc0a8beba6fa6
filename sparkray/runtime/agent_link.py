"""The agent channel of a runtime: calls with an answer, and one-way messages."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

from sparkray.exceptions import ClusterError
from sparkray.protocol.codec import decode_channel, encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    CallFailed,
    DumpObjects,
    DumpStacks,
    FindModule,
    WireError,
)
from sparkray.transport.channel import Channel, IOLoop, connect_unix
from sparkray.transport.errors import from_wire, to_wire

_CALLS_OF_AGENT = (DumpObjects, DumpStacks, FindModule)


class _Call:
    """A caller thread that waits for one answer."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.arrived = threading.Lock()
        self.arrived.acquire()
        self._undo: list[Callable[[Any], None]] = []

    def __call__(self, answer: Any) -> None:
        self.answer = answer
        self.arrived.release()
        self._settle()

    def abandon(self, undo: Callable[[Any], None]) -> None:
        """Nobody waits any more: give the answer to ``undo`` once it is there."""
        self._undo.append(undo)
        if self.answer is not None:
            self._settle()

    def _settle(self) -> None:
        if self._undo:
            with contextlib.suppress(IndexError):  # the other thread was faster
                self._undo.pop()(self.answer)


class AgentLink:
    """The one control connection of a runtime.

    Args:
        on_message: called on the I/O thread with messages that answer no call.
        on_lost: called on the I/O thread when the agent is gone.
    """

    def __init__(
        self,
        loop: IOLoop,
        path: str,
        token: bytes,
        *,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_message, self._on_lost = on_message, on_lost
        self._numbers = itertools.count(1)
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._lost = ""
        self._attach = _Call()
        self._channel = Channel(
            loop,
            connect_unix(path),
            token,
            server=False,
            on_open=lambda channel: None,
            on_frames=self._receive,
            on_close=self._closed,
        )
        loop.post(self._channel.start)

    def attach(self, message: Any, timeout_s: float) -> Any:
        """Send the first message; return the agent's `Attached`.

        Raises:
            SparkrayError: the agent refused.
            ConnectionError: no answer in time, or the token is wrong.
        """
        self.send(message)
        if not self._attach.arrived.acquire(timeout=timeout_s):
            raise ConnectionError(
                f"the node agent did not answer within {timeout_s:g} s"
            )
        return self._unwrap(self._attach.answer)

    def send(self, message: Any) -> None:
        """Send a one-way message.  Any thread; dropped if the agent is gone."""
        self._channel.send(frame(encode(message)))

    def request(
        self, build: Callable[[int], Any], on_answer: Callable[[Any], None]
    ) -> int:
        """Send ``build(call)``; ``on_answer`` gets the answer on the I/O thread.

        The answer is `CallFailed` if the call failed or the agent is gone.
        """
        call = next(self._numbers)
        self._calls[call] = on_answer
        if (
            self._lost
        ):  # not from here: the caller may hold a lock that the answer takes
            self._loop.post(lambda: self._fail(call))
        else:
            self.send(build(call))
        return call

    def call(self, build: Callable[[int], Any], timeout_s: float | None = None) -> Any:
        """Send ``build(call)`` and wait for the answer.  Never on the I/O thread.

        Raises:
            SparkrayError: what the agent reports.
            TimeoutError: no answer in time.
        """
        return self.wait_for(self.start(build), timeout_s)

    def start(self, build: Callable[[int], Any]) -> _Call:
        """Send a call whose answer `wait_for` gets later: several can be under way.

        One that is not waited for to the end is to be abandoned.
        """
        waiting = _Call()
        self.request(build, waiting)
        return waiting

    def wait_for(self, waiting: _Call, timeout_s: float | None = None) -> Any:
        if not waiting.arrived.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError(f"the node agent did not answer within {timeout_s:g} s")
        return self._unwrap(waiting.answer)

    def close(self) -> None:
        self._channel.close()

    def _unwrap(self, answer: Any) -> Any:
        if isinstance(answer, CallFailed):
            raise from_wire(answer.error)
        return answer

    def _receive(self, channel: Channel, frames: list[bytes]) -> None:
        for body in frames:
            message = decode_channel(body)
            if self._attach.answer is None:
                self._attach(message)
                continue
            waiting = None
            if not isinstance(message, _CALLS_OF_AGENT):
                waiting = self._calls.pop(getattr(message, "call", -1), None)
            (waiting or self._on_message)(message)

    def _closed(self, channel: Channel, reason: str) -> None:
        self._lost = reason
        if self._attach.answer is None:
            self._attach(CallFailed(0, self._lost_error()))
        for call in list(self._calls):
            self._fail(call)
        self._on_lost(reason)

    def _fail(self, call: int) -> None:
        waiting = self._calls.pop(call, None)
        if waiting is not None:
            waiting(CallFailed(call, self._lost_error()))

    def _lost_error(self) -> WireError:
        return to_wire(ClusterError(f"the node agent is gone: {self._lost}"))
