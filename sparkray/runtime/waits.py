"""Waiting threads, and what they wait for: told in errors, and in the log in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sparkray.resources import UNIT
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import PENDING, Entry
from sparkray.runtime.state.scheduling import KeyQueue, Task
from sparkray.runtime.submit import describe
from sparkray.runtime.waiter import Waiter
from sparkray.words import counted

_log = logging.getLogger("sparkray")


class Waits:
    """For caller threads; the lock is not held."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def wait_for(
        self, waiter: Waiter, timeout_s: float | None, story: Callable[[], str]
    ) -> bool:
        """Wait, with this process's CPU lent on; False: not in time.

        Args:
            story: what is waited for; logged after ``wait_log_s``, then more rarely.
        """
        if waiter.released.acquire(blocking=False):
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        with self._shared.blocking():
            return self._wait(waiter, timeout_s, story)

    def _wait(
        self, waiter: Waiter, timeout_s: float | None, story: Callable[[], str]
    ) -> bool:
        log_after_s = self._shared.settings.wait_log_s
        if not log_after_s or (timeout_s is not None and timeout_s <= log_after_s):
            return waiter.wait(timeout_s)
        began_s = time.monotonic()
        while not waiter.wait(log_after_s):
            waited_s = time.monotonic() - began_s
            _log.warning("waiting for %.0f s: %s", waited_s, story())
            log_after_s = waited_s
            if timeout_s is not None and timeout_s - waited_s <= log_after_s:
                return waiter.wait(max(0.0, timeout_s - waited_s))
        return True

    def story_of(self, entries: Sequence[Entry]) -> Callable[[], str]:
        """Return what says which of these objects are missing, and why."""

        def story() -> str:
            with self._shared.lock:
                pending = [entry for entry in entries if entry.state == PENDING]
                if not pending:
                    return f"{counted(len(entries), 'object')}, there only now"
                first = pending[0]
                return (
                    f"{len(pending)} of {counted(len(entries), 'object')}; the first"
                    f" is {first.id.hex()}, {_why_pending(first)}"
                )

        return story


def _why_pending(entry: Entry) -> str:
    if entry.owner is not None:
        return f"owned by process {entry.owner.worker_id.hex()}"
    task = entry.task
    if not isinstance(task, Task):
        return "whose task has ended just now" if task is None else "an actor's making"
    if task.waiting:
        missing = [e for _, e in task.refs or () if e.state == PENDING]
        names = f", first {missing[0].id.hex()}" if missing else ""
        return f"whose task {describe(task)} waits for its arguments{names}"
    if task.worker is None:
        return f"whose task {describe(task)} waits for {_worker_for(task)}"
    worker = task.worker.lease.worker
    return (
        f"whose task {describe(task)} was sent to worker {worker.worker_id.hex()} on"
        f" node {worker.node_id.hex()[:8]}"
    )


def _worker_for(task: Task) -> str:
    key = task.template.key
    if not isinstance(key, KeyQueue):
        return "its actor"
    if key.spec.strategy.group_id:
        return (
            f"placement group {key.spec.strategy.group_id.hex()}: for the nodes that"
            " its bundles need, or for room in them (see placement_group_table)"
        )
    needs = {name: units / UNIT for name, units in key.spec.resources.items()}
    return f"a worker with {needs}" if needs else "a worker"
