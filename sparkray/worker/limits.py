"""Time limits of tasks, the worker's side: stops what runs over its ``timeout_s``.

    begin -> LimitBegun to the owner, who ends this process if all else fails
    time  -> the call is stopped as `cancel` does
    end   -> whatever came of a call that was stopped so is a `TaskTimeoutError`

Calls without a limit never come here.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from sparkray.exceptions import TaskTimeoutError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import DefineTask, LimitBegun, PushTask, TaskReplied
from sparkray.store.serialize import serialize
from sparkray.transport.channel import Channel, IOLoop
from sparkray.worker.errors import this_process
from sparkray.worker.results import reply, task_id_of

Key = tuple[Channel, int]  #: a call: whose, and its number there


class TimeLimits:
    """All calls of this process that have a limit.

    Args:
        loop: runs ``stop``, which `Executor` sets.
    """

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self.stop: Callable[[Key], None] = lambda key: None
        self._lock = threading.Lock()  #: guards the three below
        self._deadlines: dict[Key, float] = {}
        self._passed: set[Key] = set()
        self._next_look = math.inf  #: a look for another time is out of date

    def begin(self, channel: Channel, task: PushTask, define: DefineTask) -> None:
        """A call begins.  Any thread."""
        begun = LimitBegun(task.number, task.attempt, this_process())
        channel.send(frame(encode(begun)))
        deadline = time.monotonic() + define.timeout_s
        with self._lock:
            self._deadlines[channel, task.number] = deadline
            if deadline >= self._next_look:
                return
            self._next_look = deadline
        self._loop.post(lambda: self._look_at(deadline))

    def end(
        self,
        channel: Channel,
        task: PushTask,
        define: DefineTask,
        outcome: bytes | TaskReplied,
    ) -> bytes | TaskReplied:
        """A call has ended; return what to answer.  Any thread.

        A value that came in spite of all is as good as any other.
        """
        key = channel, task.number
        with self._lock:
            self._deadlines.pop(key, None)
            passed = key in self._passed
            self._passed.discard(key)
        stopped = isinstance(outcome, TaskReplied) and outcome.outcome != "ok"
        if not passed or not stopped:
            return outcome
        name = f"{define.name} ({task_id_of(channel, task).hex()})"
        error = TaskTimeoutError(name, define.timeout_s, this_process())
        return reply(task, "error", serialize(error).to_bytes())

    # --- I/O thread ---

    def _look_at(self, moment: float) -> None:
        delay_s = max(0.0, moment - time.monotonic())
        self._loop.call_later(delay_s, lambda: self._look(moment))

    def _look(self, moment: float) -> None:
        with self._lock:
            if moment != self._next_look:
                return
            now = time.monotonic()
            due = [key for key, deadline in self._deadlines.items() if deadline <= now]
            for key in due:
                del self._deadlines[key]
            self._passed.update(due)
            self._next_look = min(self._deadlines.values(), default=math.inf)
            if self._next_look < math.inf:
                self._look_at(self._next_look)
        for key in due:
            self.stop(key)
