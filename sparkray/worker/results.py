"""From what user code returned to answers: values, streams, and their batching."""

from __future__ import annotations

import concurrent.futures
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from sparkray.protocol.codec import encode
from sparkray.protocol.framing import LENGTH, frame
from sparkray.protocol.messages import (
    UNWANTED,
    DefineTask,
    PushTask,
    ReturnValue,
    StreamConsumed,
    StreamItem,
    TaskReplied,
)
from sparkray.runtime.core import Runtime
from sparkray.runtime.functions import DYNAMIC, STREAMING
from sparkray.runtime.refs import ObjectRef, collecting
from sparkray.store.serialize import Serialized, serialize
from sparkray.transport.channel import Channel
from sparkray.words import counted

#: Answers of short tasks may wait this long for company.
BATCH_S: Final = 0.0005
BATCH_ANSWERS: Final = 64
#: So many items more a stream may make that nobody wants: one that is short and does
#: something beside comes to its end, one without end does not go on for ever.
UNWANTED_ITEMS: Final = 64

_clock = time.perf_counter


class Answers:
    """Answers on their way out, several in one system call while tasks are short."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  #: guards the three below
        self._out: list[bytes] = []
        self._channel: Channel | None = None
        self._flushed = 0.0

    def add(self, channel: Channel, body: bytes, *, hold: bool) -> None:
        """Send an answer, now or (``hold``) together with those that follow at once."""
        with self._lock:
            if self._channel is not channel:
                self._flush()
                self._channel = channel
            out = self._out
            out.append(LENGTH.pack(len(body)))
            out.append(body)
            due = _clock() - self._flushed > BATCH_S
            if due or not hold or len(out) > 2 * BATCH_ANSWERS:
                self._flush()

    def flush(self) -> None:
        """Send what is held back.  Any thread."""
        if self._out:
            with self._lock:
                self._flush()

    def _flush(self) -> None:
        if self._out and self._channel is not None:
            out, self._out = self._out, []
            self._channel.send(b"".join(out))
        self._flushed = _clock()


class Results:
    """Turns what user code returned into answers that are more than one small value.

    Args:
        blocked: entered around a wait for the consumer of a stream.
    """

    def __init__(
        self,
        runtime: Runtime,
        answers: Answers,
        blocked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._fetcher = runtime.fetcher
        self._answers = answers
        self._blocked = blocked
        self._consumed: dict[tuple[Channel, int], int] = {}
        #: Async generators that wait for their consumer: sent, limit, whom to tell.
        self._stalled: dict[
            tuple[Channel, int], tuple[int, int, concurrent.futures.Future[None]]
        ] = {}
        #: Streams that nobody wants: how many items they have made since.
        self._unwanted: dict[tuple[Channel, int], int] = {}
        #: Plain generators that run: is it cancelled?
        self._under_way: dict[tuple[Channel, int], bool] = {}
        self._consumption = threading.Condition()  #: guards the three above

    def large(
        self,
        channel: Channel,
        task: PushTask,
        serialized: Serialized,
        met: list[ObjectRef],
    ) -> TaskReplied:
        """Answer with one value that is large, or has refs in it."""
        return self._values(channel, task, [(serialized, met)], 0)

    def several(
        self, channel: Channel, task: PushTask, define: DefineTask, value: Any
    ) -> TaskReplied:
        count = define.num_returns
        if count == STREAMING:
            return self._stream(channel, task, define, value)
        if count == 1:
            raise TypeError(
                f"{define.name} returned a generator, which cannot be sent;"
                ' give it num_returns="streaming" or "dynamic"'
            )
        if count == 0:
            return reply(task, "ok", values=[_none(0)])
        items = value if count == DYNAMIC else _exactly(count, value, define.name)
        values = []
        for item in items:
            with collecting(bequeath=True) as met:
                values.append((serialize(item, f"the result of {define.name}"), met))
        first = 1 if count == DYNAMIC else 0
        return self._values(channel, task, values, first)

    def _values(
        self, channel: Channel, task: PushTask, values: list[Any], first: int
    ) -> TaskReplied:
        """Answer with values, the first of which is return number ``first``."""
        owner = channel.peer.address
        stem = task_id_of(channel, task)
        parts = [
            self._fetcher.return_value(
                stem + (index + first).to_bytes(4, "big"), index, serialized, met, owner
            )
            for index, (serialized, met) in enumerate(values)
        ]
        return reply(task, "ok", values=parts)

    def _stream(
        self, channel: Channel, task: PushTask, define: DefineTask, value: Any
    ) -> TaskReplied:
        key = (channel, task.number)
        with self._consumption:
            self._under_way[key] = False
        try:
            return self._send_items(channel, task, define, value)
        finally:
            self.forget_stream(channel, task)

    def _send_items(
        self, channel: Channel, task: PushTask, define: DefineTask, value: Any
    ) -> TaskReplied:
        key = (channel, task.number)
        index = 0
        for item in value:
            wanted = self.send_item(channel, task, define, item, index)
            del item
            index += 1
            if wanted and define.backpressure:
                self._await_consumer(channel, task, index, define.backpressure)
            cancelled = self._under_way[key] or channel.is_closed
            if cancelled or not wanted:
                if inspect.isgenerator(value):
                    value.close()
                if cancelled:
                    return reply(task, "cancelled")
                break
        return self.end_stream(task, index)

    def send_item(
        self,
        channel: Channel,
        task: PushTask,
        define: DefineTask,
        item: Any,
        index: int,
    ) -> bool:
        """Send item number ``index`` of a stream; return False to end it there."""
        with collecting(bequeath=True) as met:
            serialized = serialize(item, f"item {index} of {define.name}")
        object_id = task_id_of(channel, task) + (index + 1).to_bytes(4, "big")
        part = self._fetcher.return_value(
            object_id, index, serialized, met, channel.peer.address
        )
        self._answers.flush()
        channel.send(frame(encode(StreamItem(task.number, task.attempt, part))))
        return self._is_wanted((channel, task.number))

    def _is_wanted(self, key: tuple[Channel, int]) -> bool:
        with self._consumption:
            if self._consumed.get(key) != UNWANTED:
                return True
            made = self._unwanted[key] = self._unwanted.get(key, 0) + 1
            return made < UNWANTED_ITEMS

    def end_stream(self, task: PushTask, items: int) -> TaskReplied:
        answer = reply(task, "ok", values=[_none(0)])
        answer.items = items
        return answer

    def _await_consumer(
        self, channel: Channel, task: PushTask, sent: int, limit: int
    ) -> None:
        key = (channel, task.number)

        def may_go_on() -> bool:
            return self._has_room(key, sent, limit)

        with self._consumption:
            if may_go_on():
                return
        with self._blocked(), self._consumption:
            self._consumption.wait_for(may_go_on)

    def _has_room(self, key: tuple[Channel, int], sent: int, limit: int) -> bool:
        taken = self._consumed.get(key, 0)
        if key[0].is_closed or self._under_way.get(key, False):
            return True
        return taken < 0 or sent - taken < limit

    def room_for_more(
        self, channel: Channel, task: PushTask, sent: int, limit: int
    ) -> concurrent.futures.Future[None] | None:
        """Return what to wait for before the next item; None: send it now."""
        key = (channel, task.number)
        with self._consumption:
            if self._has_room(key, sent, limit):
                return None
            future: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._stalled[key] = sent, limit, future
            return future

    def cancel_stream(self, channel: Channel, number: int) -> None:
        """Have a stream of a plain generator end where it yields."""
        with self._consumption:
            if (channel, number) in self._under_way:
                self._under_way[channel, number] = True
                self._consumption.notify_all()

    def forget_stream(self, channel: Channel, task: PushTask) -> None:
        with self._consumption:
            self._consumed.pop((channel, task.number), None)
            self._stalled.pop((channel, task.number), None)
            self._unwanted.pop((channel, task.number), None)
            self._under_way.pop((channel, task.number), None)

    def wake_stalled(self) -> None:
        """Let go on whoever may: items were taken, or a consumer is gone."""
        with self._consumption:
            self._consumption.notify_all()
            for key, (sent, limit, future) in list(self._stalled.items()):
                if self._has_room(key, sent, limit):
                    del self._stalled[key]
                    if future.set_running_or_notify_cancel():
                        future.set_result(None)

    def on_consumed(self, channel: Channel, messages: Sequence[StreamConsumed]) -> None:
        with self._consumption:
            for message in messages:
                self._consumed[channel, message.number] = message.items
        self.wake_stalled()


def reply(
    task: PushTask,
    outcome: str,
    error: bytes = b"",
    values: list[ReturnValue] | None = None,
) -> TaskReplied:
    return TaskReplied(
        number=task.number,
        attempt=task.attempt,
        run_s=0.0,
        outcome=outcome,
        values=values or [],
        error=error,
        kept=[],
        items=0,
    )


def _none(index: int) -> ReturnValue:
    value = serialize(None).to_bytes()
    return ReturnValue(index, value, len(value), [], [])


def _exactly(count: int, value: Any, name: str) -> list[Any]:
    try:
        items = list(value)
    except TypeError:
        raise ValueError(
            f"{name} declares num_returns={count} but returned one"
            f" {type(value).__name__}; return {counted(count, 'value')}"
        ) from None
    if len(items) != count:
        raise ValueError(
            f"{name} declares num_returns={count} but returned"
            f" {counted(len(items), 'value')}"
        )
    return items


def task_id_of(channel: Channel, task: PushTask) -> bytes:
    owner: bytes = channel.peer.address.worker_id
    return owner + task.number.to_bytes(8, "big")
