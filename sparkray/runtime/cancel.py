"""Cancelling tasks: queued ones end here, pushed ones at their worker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from sparkray.exceptions import TaskCancelledError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import CancelObject, CancelTask
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorQueue
from sparkray.runtime.state.scheduling import Task
from sparkray.runtime.submit import Submitter, describe
from sparkray.transport.channel import Channel


class Canceller:
    """Ends tasks that this process owns; passes on what others own."""

    def __init__(
        self, shared: Shared, ownership: Ownership, submitter: Submitter
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._submitter = submitter

    def cancel(self, ref: ObjectRef, *, force: bool, recursive: bool) -> None:
        """Stop the task that makes an object; one that has ended is left alone."""
        with self._shared.lock:
            entry = self._ownership.entry_of(ref)
            if entry.owner is not None:
                message = CancelObject(entry.id, force, recursive)
                self._shared.peers.send(entry.owner, message)
            elif isinstance(entry.task, Task):
                if force and isinstance(entry.task.template.key, ActorQueue):
                    raise ValueError(
                        "force would end the actor: use sparkray.kill for that, or"
                        " cancel without force"
                    )
                self._cancel(entry.task, force=force, recursive=recursive)

    def cancel_children(self, task_id: bytes) -> None:
        """Cancel what a cancelled task has started and not finished."""
        with self._shared.lock:
            for task in list(self._submitter.tasks.values()):
                if task.parent == task_id:
                    self._cancel(task, force=False, recursive=True)

    def on_cancel_object(
        self, channel: Channel, messages: Sequence[CancelObject]
    ) -> None:
        with self._shared.lock:
            for message in messages:
                entry = self._shared.table.entries.get(message.object_id)
                if entry is not None and isinstance(entry.task, Task):
                    self._cancel(
                        entry.task, force=message.force, recursive=message.recursive
                    )

    def _cancel(self, task: Task, *, force: bool, recursive: bool) -> None:
        task.cancelled = True
        worker = task.worker
        if worker is None:
            key = task.template.key
            with contextlib.suppress(ValueError):  # it may wait for its arguments
                key.queue.remove(task)
            self._submitter.fail(task, TaskCancelledError(describe(task)))
            self._submitter.settle()
            if key.ordered:  # others may have waited behind it
                self._submitter.dispatch(key)
            self._submitter.leasing.withdraw_if_idle(key)
            return
        worker.channel.send(frame(encode(CancelTask(task.number, recursive))))
        if force:
            self._submitter.leasing.kill(worker, f"cancel of {describe(task)}")
