"""Leased workers: asking for them, losing them, taking tasks back, returning them.

Runs with the runtime's lock held, except the ``on_...`` handlers, which take it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    TaskCancelledError,
    WorkerCrashedError,
)
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    AskDeath,
    CallFailed,
    Death,
    KillWorker,
    Lease,
    ReclaimTasks,
    RequestLeases,
    Retiring,
    ReturnLease,
    TasksReclaimed,
    UseDevices,
    WithdrawRequest,
    YieldLease,
)
from sparkray.runtime.limits import Limits, may_retry, name_of, timeout_of
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorQueue
from sparkray.runtime.state.scheduling import (
    KeyQueue,
    LeasedWorker,
    SchedulingKey,
    Task,
)
from sparkray.transport.channel import Channel
from sparkray.transport.errors import from_wire

if TYPE_CHECKING:
    from sparkray.runtime.submit import Submitter

log = logging.getLogger(__name__)

#: How long an idle worker looks on before it takes waiting tasks from a busy one.
RECLAIM_DELAY_S = 0.003
#: A task behind others waits for one of them no longer than twice this time.
STALL_S = 0.02
#: After a crash its task waits so long: workers that died together with this one are
#: known as dead by then, and it is not pushed to one of them.
RETRY_S = 0.05

_CRASHES = {"oom": OutOfMemoryError, "node": NodeDiedError}


class Leasing:
    """All leases that this process holds or asks for."""

    def __init__(self, submitter: Submitter, shared: Shared) -> None:
        self._submitter = submitter
        self._shared = shared
        self._idle_check_due = False
        self._reclaim_due = False
        self._watch_due = False
        self.limits = Limits(shared, submitter.tasks, self.kill)

    # --- asking ---

    def request(self, key: KeyQueue) -> None:
        count = key.leases_to_request()
        if not count:
            return
        call = self._shared.agent.request(
            lambda call: RequestLeases(call, key.spec, count),
            lambda answer: self._answered(key, answer),
        )
        key.requests[call] = count

    def _answered(self, key: KeyQueue, answer: Any) -> None:
        """The agent granted leases or refused.  I/O thread, lock not held."""
        with self._shared.lock:
            key.requests.pop(answer.call, None)
            key.saturated = False
            if isinstance(answer, CallFailed):
                self._refused(key, answer)
            else:
                for lease in answer.leases:
                    self._add(key, lease)
            self._submitter.dispatch(key)
            self.withdraw_if_idle(key)
            for worker in key.workers:
                if not worker.in_flight:
                    self.fell_idle(worker)

    def _refused(self, key: KeyQueue, answer: CallFailed) -> None:
        error = from_wire(answer.error)
        tasks = list(key.queue)
        key.queue.clear()
        for task in tasks:
            self._submitter.fail(task, error)
        self._submitter.settle()

    def _add(self, key: KeyQueue, lease: Lease) -> None:
        try:
            channel = self._shared.peers.connect(lease.worker)
        except OSError as error:
            log.debug("leased worker is gone already: %s", error)
            self._shared.agent.send(ReturnLease(lease.lease_id, False))
            return
        worker = LeasedWorker(lease, key, channel, time.monotonic())
        channel.peer.leased = worker
        if lease.gpu_ids is not None:
            channel.send(frame(encode(UseDevices(lease.gpu_ids))))
        key.workers.append(worker)
        key.saturated = False

    def withdraw_if_idle(self, key: SchedulingKey) -> None:
        """Nothing waits any more: leases still asked for are not wanted."""
        if not key.queue:
            for call in key.requests:
                self._shared.agent.send(WithdrawRequest(call))

    # --- idle workers ---

    def fell_idle(self, worker: LeasedWorker) -> None:
        """A worker ran out of tasks: return it, or look for work elsewhere."""
        worker.key.saturated = False
        if isinstance(worker.key, ActorQueue):
            return
        if worker.leaving:
            self._give_back(worker, reusable=True)
            return
        worker.idle_since = time.monotonic()
        if worker.key.requests:
            self.withdraw_if_idle(worker.key)
        if not self._idle_check_due:
            self._idle_check_due = True
            delay = self._shared.settings.lease_idle_s
            self._shared.loop.post(
                lambda: self._shared.loop.call_later(delay, self._check_idle)
            )
        if not self._reclaim_due and any(
            len(w.in_flight) > 1 for w in worker.key.workers
        ):
            self._reclaim_due = True
            self._shared.loop.post(
                lambda: self._shared.loop.call_later(RECLAIM_DELAY_S, self._reclaim)
            )

    def _check_idle(self) -> None:
        """Return leases without work.  I/O thread, lock not held."""
        with self._shared.lock:
            self._idle_check_due = False
            limit = time.monotonic() - self._shared.settings.lease_idle_s
            still_idle = None
            for key in self._submitter.templates.keys.values():
                for worker in list(key.workers):
                    if worker.in_flight:
                        continue
                    if worker.idle_since <= limit and not key.queue:
                        self._give_back(worker, reusable=True)
                    else:
                        still_idle = worker
            if still_idle is not None:
                self._idle_check_due = True
                delay = self._shared.settings.lease_idle_s / 2
                self._shared.loop.call_later(delay, self._check_idle)

    def _give_back(self, worker: LeasedWorker, *, reusable: bool) -> None:
        if worker in worker.key.workers:
            worker.key.workers.remove(worker)
            if worker.channel.peer.leased is worker:
                worker.channel.peer.leased = None
            self._shared.agent.send(ReturnLease(worker.lease.lease_id, reusable))

    def return_all(self) -> None:
        for key in self._submitter.templates.keys.values():
            for worker in list(key.workers):
                self._give_back(worker, reusable=not worker.in_flight)

    # --- taking tasks back ---

    def _reclaim(self) -> None:
        """Move waiting tasks from busy workers to idle ones.  Lock not held."""
        with self._shared.lock:
            self._reclaim_due = False
            for key in self._submitter.templates.keys.values():
                found = key.reclaim_for_idle()
                if found is not None:
                    worker, numbers = found
                    worker.channel.send(frame(encode(ReclaimTasks(numbers))))

    def watch(self) -> None:
        """Tasks were pushed behind others: see that these do not hold them up."""
        if not self._watch_due:
            self._watch_due = True
            self._shared.loop.post(self._watch_on)

    def _watch_on(self) -> None:
        self._shared.loop.call_later(STALL_S, self._reclaim_stalled)

    def _reclaim_stalled(self) -> None:
        """Take back what waits behind tasks that run long.  Lock not held."""
        with self._shared.lock:
            keys = list(self._submitter.templates.keys.values())
            for key in keys:
                for worker, numbers in key.reclaim_from_stalled():
                    worker.channel.send(frame(encode(ReclaimTasks(numbers))))
            self._watch_due = any(key.has_tasks_behind_others() for key in keys)
            if self._watch_due:
                self._watch_on()

    def on_reclaimed(
        self, channel: Channel, messages: Sequence[TasksReclaimed]
    ) -> None:
        with self._shared.lock:
            worker: LeasedWorker | None = channel.peer.leased
            if worker is None:
                return
            for message in messages:
                worker.reclaiming = False
                tasks = [
                    task
                    for number in message.numbers
                    if (task := worker.in_flight.pop(number, None)) is not None
                ]
                worker.blocked = worker.blocked or message.blocked
                self._submitter.requeue(tasks)
            if not worker.in_flight:
                self.fell_idle(worker)

    def on_yield(self, channel: Channel, messages: Sequence[YieldLease]) -> None:
        """Others want the worker: push no more, take back what has not begun."""
        with self._shared.lock:
            worker: LeasedWorker | None = channel.peer.leased
            if worker is None or worker.leaving:
                return
            worker.leaving = True
            if len(worker.in_flight) > 1:
                numbers = list(worker.in_flight)[1:]
                worker.channel.send(frame(encode(ReclaimTasks(numbers))))
            elif not worker.in_flight:
                self.fell_idle(worker)
            self._submitter.dispatch(worker.key)

    def on_retiring(self, channel: Channel, messages: Sequence[Retiring]) -> None:
        with self._shared.lock:
            worker: LeasedWorker | None = channel.peer.leased
            if worker is not None:
                worker.leaving = True
                self._submitter.requeue(list(worker.in_flight.values()))
                worker.in_flight.clear()
                self._give_back(worker, reusable=False)
                self._submitter.dispatch(worker.key)

    # --- lost workers ---

    def worker_lost(self, channel: Channel, reason: str) -> None:
        """The channel to a leased worker ended: run its tasks again, or fail them.

        Tasks run in the order of pushing, so the first one that is unanswered is held
        responsible; the others are pushed alone from now on, so that the next crash has
        one suspect only.
        """
        worker: LeasedWorker | None = channel.peer.leased
        if worker is None:
            return
        channel.peer.leased = None
        if isinstance(worker.key, ActorQueue):
            self._shared.on_actor_lost(worker)
            return
        if worker in worker.key.workers:
            worker.key.workers.remove(worker)
        self._shared.agent.send(ReturnLease(worker.lease.lease_id, False))
        tasks = list(worker.in_flight.values())
        worker.in_flight.clear()
        for task in tasks:
            task.solo = True
            task.died_on = [*(task.died_on or ()), worker.lease.worker.node_id]
        if tasks:
            suspect = tasks.pop(0)
            if self._retry(suspect):
                suspect.worker = None
                attempt = suspect.attempt
                self._shared.loop.call_later(
                    RETRY_S, lambda: self._run_again(suspect, attempt)
                )
            else:
                self._explain(suspect, worker)
        self._submitter.requeue(tasks)
        self._submitter.dispatch(worker.key)

    def _run_again(self, task: Task, attempt: int) -> None:
        with self._shared.lock:
            known = task.number in self._submitter.tasks  # not cancelled meanwhile
            if known and task.attempt == attempt:
                self._submitter.requeue([task])

    def _retry(self, task: Task) -> bool:
        if not may_retry(task):
            return False
        task.retries_left -= 1
        task.attempt += 1
        task.overran = ""
        return True

    def _explain(self, task: Task, worker: LeasedWorker) -> None:
        """Fail a task with how its worker ended, once the agent knows that."""
        if task.cancelled or task.overran:
            cancelled = TaskCancelledError(name_of(task))
            self._submitter.fail(
                task, cancelled if task.cancelled else timeout_of(task)
            )
            self._submitter.settle()
            return
        address = worker.lease.worker
        self._shared.agent.request(
            lambda call: AskDeath(call, address.worker_id, address.node_id),
            lambda answer: self._explained(task, answer),
        )

    def _explained(self, task: Task, answer: Any) -> None:
        if isinstance(answer, Death):
            kind = _CRASHES.get(answer.kind, WorkerCrashedError)
            error = kind(name_of(task), answer.reason, answer.log_tail)
        else:
            error = WorkerCrashedError(name_of(task), str(from_wire(answer.error)))
        with self._shared.lock:
            self._submitter.fail(task, error)
            self._submitter.settle()

    def kill(self, worker: LeasedWorker, reason: str) -> None:
        """End a worker at once (`cancel` with force, a time-out)."""
        address = worker.lease.worker
        self._shared.agent.request(
            lambda call: KillWorker(call, address.worker_id, address.node_id, reason),
            lambda answer: None,
        )
