"""Time limits of tasks, the owner's side: ends workers whose tasks do not stop.

A worker says when a task with a ``timeout_s`` begins, and stops it when its time is up
(see `worker.limits`).  One that cannot, because the task holds the interpreter, hears
no interrupt or the process is frozen, is killed from here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from sparkray.exceptions import TaskTimeoutError
from sparkray.protocol.messages import LimitBegun
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.scheduling import LeasedWorker, Task
from sparkray.transport.channel import Channel

log = logging.getLogger(__name__)

#: How often it is looked for tasks that did not stop, while any has a limit.
CHECK_S: Final = 0.25


class Limits:
    """Tasks of this process that run somewhere and have a limit.

    Args:
        tasks: all tasks of this process, by number.
        kill: ends a worker, with a reason.
    """

    def __init__(
        self,
        shared: Shared,
        tasks: dict[int, Task],
        kill: Callable[[LeasedWorker, str], None],
    ) -> None:
        self._shared = shared
        self._tasks = tasks
        self._kill = kill
        #: By number: attempt, when its worker is ended, and which process that is.
        self._running: dict[int, tuple[int, float, str]] = {}
        self._check_due = False

    def on_begun(self, channel: Channel, messages: Sequence[LimitBegun]) -> None:
        now = time.monotonic()
        with self._shared.lock:
            for message in messages:
                task = self._tasks.get(message.number)
                if task is None or task.attempt != message.attempt:
                    continue
                limit_s = task.template.define.timeout_s
                end = now + limit_s + self._shared.settings.task_stop_s
                self._running[message.number] = message.attempt, end, message.where
        self._check_later()

    def _check_later(self) -> None:
        if self._running and not self._check_due:
            self._check_due = True
            self._shared.loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """Kill workers, and forget tasks that have ended.  Lock not held."""
        self._check_due = False
        now = time.monotonic()
        with self._shared.lock:
            for number, (attempt, end, where) in list(self._running.items()):
                task = self._tasks.get(number)
                if task is None or task.attempt != attempt:
                    del self._running[number]
                elif now >= end:
                    del self._running[number]
                    self._end(task, where)
        self._check_later()

    def _end(self, task: Task, where: str) -> None:
        if task.worker is None:  # its worker is lost already
            return
        task.overran = where
        reason = f"{name_of(task)} did not stop when its time was up"
        log.info("ending %s: %s", where, reason)
        self._kill(task.worker, reason)


def may_retry(task: Task) -> bool:
    """Tell whether a task whose process is gone may run again.

    One that was ended for its time-out raised an error, in effect: it runs again only
    where that error may be retried.
    """
    if task.cancelled or not task.retries_left:
        return False
    allowed = task.template.retry_exceptions
    if not task.overran or isinstance(allowed, bool):
        return not task.overran or bool(allowed)
    return issubclass(TaskTimeoutError, allowed)


def timeout_of(task: Task) -> TaskTimeoutError:
    """Return the error of a task that was ended for its time-out."""
    limit_s = task.template.define.timeout_s
    return TaskTimeoutError(name_of(task), limit_s, task.overran)


def name_of(task: Task) -> str:
    """Return a task's name and id, for messages."""
    return f"{task.template.name} ({task.entry.id[:-4].hex()})"
