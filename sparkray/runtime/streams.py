"""Streaming tasks, the owner's side: items come, are taken, and hold the task back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    UNREAD,
    UNWANTED,
    ReturnValue,
    StreamConsumed,
    StreamItem,
)
from sparkray.runtime.recovery import runs_again
from sparkray.runtime.returns import Returns
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import FAILED, Entry
from sparkray.runtime.state.scheduling import Task
from sparkray.runtime.state.streams import Stream
from sparkray.transport.channel import Channel


class Streams:
    """All streams that this process consumes.  The runtime's lock is held, except in
    the ``on_...`` handler, which takes it.

    Args:
        tasks: the submitter's, by number.
        returns: takes what tasks have made.
    """

    def __init__(
        self,
        shared: Shared,
        tasks: dict[int, Task],
        returns: Returns,
        submitter: Any,
    ) -> None:
        self._shared = shared
        self._table = shared.table
        self._tasks = tasks
        self._returns = returns
        self._submitter = submitter

    def on_items(self, channel: Channel, messages: Sequence[StreamItem]) -> None:
        with self._shared.lock:
            for message in messages:
                task = self._tasks.get(message.number)
                if task is None or task.attempt != message.attempt:
                    continue
                stream = task.stream
                if runs_again(task):
                    self._submitter.recovery.take(task, message.value)
                    self._tell_consumed(task, UNREAD)
                elif stream is not None and stream.is_new(message.value.index):
                    self._add_item(task, stream, message.value)
                    if stream.abandoned:
                        self._tell_consumed(task, self._consumed(task, stream))
                elif stream is not None:  # a retry makes it a second time
                    self._submitter.recovery.take(task, message.value)
                    if stream.backpressure or stream.abandoned:
                        self._tell_consumed(task, self._consumed(task, stream))
            self._submitter.settle()

    def _add_item(self, task: Task, stream: Stream, value: ReturnValue) -> None:
        first = stream.completed_id
        entry = Entry(first[:-4] + (value.index + 1).to_bytes(4, "big"))
        entry.pins = 1  # the stream's own, until the item is taken
        self._table.entries[entry.id] = entry
        self._returns.settle(task, entry, value)
        stream.add(entry)
        if stream.abandoned:
            self.drop_items(stream)
        self._wake_stream(stream)

    def fail(self, task: Task, stream: Stream, error: bytes) -> None:
        """The error becomes the last item: the consumer meets it in its place."""
        if stream.total is None:
            index = stream.arrived
            self._add_item(task, stream, ReturnValue(index, b"", 0, [], []))
            last = stream.entries.get(index)
            if last is not None:
                last.settle(FAILED, error)
        self.end(stream)

    def end(self, stream: Stream) -> None:
        stream.finish()
        self._wake_stream(stream)

    def _wake_stream(self, stream: Stream) -> None:
        waiters, stream.waiters = stream.waiters, []
        for waiter in waiters:
            waiter.notify(Entry(b""))

    def drop_items(self, stream: Stream) -> None:
        """Let go of items that nobody will take."""
        while (entry := stream.take()) is not None:
            self._table.unpin([entry])

    def _tell_consumed(self, task: Task, count: int) -> None:
        if task.worker is not None:
            task.worker.channel.send(frame(encode(StreamConsumed(task.number, count))))

    def note_taken(self, stream: Stream) -> None:
        """An item was taken (or none ever will be): the task may go on."""
        task = self._tasks.get(stream.number)
        if task is None or runs_again(task):
            return
        if stream.backpressure or stream.abandoned:
            self._tell_consumed(task, self._consumed(task, stream))

    def _consumed(self, task: Task, stream: Stream) -> int:
        """Return what to tell the task, as in `StreamConsumed`."""
        if task.again is not None:  # its end is waited for, by who would read on
            return UNREAD
        if not stream.abandoned:
            return stream.taken
        return UNREAD if self._table.is_held(task.entry) else UNWANTED
