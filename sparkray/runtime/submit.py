"""Tasks from `.remote()` to their answers: the owner's side.

    submit -> (waits for arguments) -> queue of its scheduling key -> leased worker
           -> answer, or lost worker (again, or an error)

Everything here runs with the runtime's lock held, except where a method says otherwise.
The decisions (who gets what, when to lease) are in `runtime.state.scheduling`.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from sparkray.exceptions import SparkrayError, TaskCancelledError, TaskError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import LENGTH, frame
from sparkray.protocol.messages import (
    AddBorrower,
    Argument,
    DefineTask,
    PushTask,
    TaskDone,
    TaskReplied,
)
from sparkray.runtime.arguments import Packed, PutsArguments, argument, pack
from sparkray.runtime.context import RunningTask, running
from sparkray.runtime.functions import DYNAMIC, STREAMING, TaskTemplate
from sparkray.runtime.leasing import Leasing
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.recovery import Recovery, runs_again
from sparkray.runtime.refs import ObjectRef, ObjectRefGenerator
from sparkray.runtime.returns import Returns
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorClient
from sparkray.runtime.state.objects import FAILED, INLINE, PENDING, Entry
from sparkray.runtime.state.scheduling import (
    KeyQueue,
    LeasedWorker,
    SchedulingKey,
    Task,
    TemplateState,
)
from sparkray.runtime.state.streams import Stream
from sparkray.runtime.streams import Streams
from sparkray.runtime.templates import Templates
from sparkray.store.serialize import deserialize, serialize
from sparkray.transport.channel import Channel

log = logging.getLogger(__name__)

#: Short tasks that are submitted in quick succession travel together: a system call
#: and a thread switch for each would cost more than the tasks.  `get` and `wait` push
#: what is held back; a timer does it for callers that turn to something else.
BURST_INTERVAL_S: Final = 0.001
BURST_BEGINS: Final = 3
BURST_TASK_S: Final = 0.001
BURST_TASKS: Final = 32
BURST_DELAY_S: Final = 0.001

_clock = time.monotonic


class _Dependency:
    """Tells the submitter that an argument of a task exists now (or never will)."""

    __slots__ = ("attempt", "ready", "task")

    def __init__(self, task: Task, ready: collections.deque[Task]) -> None:
        self.task = task
        self.attempt = task.attempt
        self.ready = ready

    def notify(self, entry: Entry) -> None:
        if self.attempt != self.task.attempt:
            return  # it was cancelled while it waited, and runs again
        self.task.waiting -= 1
        if not self.task.waiting:
            self.ready.append(self.task)


class Submitter:
    """All tasks that this process owns."""

    def __init__(
        self, shared: Shared, ownership: Ownership, store: PutsArguments
    ) -> None:
        self._shared = shared
        self._table = shared.table
        self._ownership = ownership
        self._store = store
        #: Tasks whose arguments all exist now; queued by `settle`.
        self._ready: collections.deque[Task] = collections.deque()
        self.tasks: dict[int, Task] = {}
        self._last_submit_s = 0.0
        self._burst = 0  #: submissions in quick succession so far
        self._flush_due = False
        self._held: set[SchedulingKey] = set()  #: keys whose tasks a burst holds back
        self.templates = Templates(shared, store)
        self.leasing = Leasing(self, shared)
        self._returns = returns = Returns(shared, ownership)
        self.recovery = Recovery(shared, ownership, returns, self)
        self.streams = Streams(shared, self.tasks, returns, self)

    # --- submitting: caller's thread, lock not held at the beginning ---

    def submit(self, template: TaskTemplate, args: Any, kwargs: Any) -> Any:
        """Start a task; return what its ``num_returns`` promises."""
        state: TemplateState | None = template.state
        current = running.task
        depth = 0 if current is None else current.depth + 1
        if (
            state is None
            or template.runtime is not self.templates
            or state.depth != depth
            or (current is not None and state.captured != current.captures)
        ):
            captured = None if current is None else current.captures
            state = self.templates.state_of(template, depth, captured)
        return self.start(state, current, args, kwargs, None)

    def start(
        self,
        state: TemplateState,
        current: RunningTask | None,
        args: Any,
        kwargs: Any,
        pin: Entry | None,
    ) -> Any:
        """Start a task of a known template.

        Args:
            current: the task that submits it.
            pin: an entry that was pinned for it already (an actor's).
        """
        shared = self._shared
        packed = pack(args, kwargs, state.name, self._store) if args or kwargs else None
        number = next(shared.numbers)
        object_id = shared.prefix + number.to_bytes(8, "big") + b"\0\0\0\0"
        parent = b"" if current is None else current.task_id
        entry = Entry(object_id, local=1)
        task = Task(number, state, b"", entry, state.max_retries, parent)
        entry.task = task
        ref: Any = ObjectRef(object_id)
        with shared.lock:
            if shared.closed:
                raise SparkrayError(shared.closed)
            self._table.entries[object_id] = entry
            self.tasks[number] = task
            if pin is not None:
                task.pinned = [pin]
            if state.num_returns != 1:
                ref = self._several(task, ref, state)
            if packed is not None:
                self.hold(task, packed)
                if task.waiting and not state.key.ordered:
                    return ref
            self._enqueue(task, state)
        return ref

    def _enqueue(self, task: Task, state: TemplateState) -> None:
        """Queue a new task; push it at once, or soon within a burst of short ones."""
        key = state.key
        queue = key.queue
        queue.append(task)
        now = _clock()
        if now - self._last_submit_s < BURST_INTERVAL_S:
            self._burst += 1
        else:
            self._burst = 0
        self._last_submit_s = now
        run_s = state.run_s
        if self._burst < BURST_BEGINS or run_s is None or run_s > BURST_TASK_S:
            if not key.saturated or not len(queue) % 32:
                self.dispatch(key)
        elif not len(queue) % BURST_TASKS:
            self.dispatch(key)
        else:
            self._held.add(key)
            if not self._flush_due:
                self._flush_due = True
                self._shared.loop.post(self._flush_soon)

    def _flush_soon(self) -> None:
        self._shared.loop.call_later(BURST_DELAY_S, self.flush)

    def flush(self) -> None:
        """Push what a burst holds back.  Any thread, lock not held."""
        self._burst = 0
        if self._flush_due:
            with self._shared.lock:
                self._flush_due = False
                held, self._held = self._held, set()
                for key in (*held, *self.templates.keys.values()):
                    self.dispatch(key)

    def _several(self, task: Task, ref: ObjectRef, state: TemplateState) -> Any:
        """Prepare any other number of returns than one."""
        count = state.num_returns
        object_id = ref.binary()
        if count == STREAMING:
            backpressure = state.define.backpressure
            task.stream = Stream(task.number, object_id, backpressure)
            return ObjectRefGenerator(task.stream, ref)
        if count == DYNAMIC:
            return ref
        if count == 0:
            task.entry.pins = 1  # the ref goes when the caller returns
            task.pinned = [*(task.pinned or ()), task.entry]
            return None
        entries = [task.entry]
        for index in range(1, count):
            entry_id = object_id[:-4] + index.to_bytes(4, "big")
            entry = Entry(entry_id, local=1, task=task)
            self._table.entries[entry.id] = entry
            entries.append(entry)
        task.entries = entries
        return [ref, *(ObjectRef(entry.id) for entry in entries[1:])]

    def hold(self, task: Task, packed: Packed) -> None:
        """Keep all that the task needs until its answer; wait for top-level refs."""
        task.args = packed.body
        task.stored_args = packed.stored
        pinned = task.pinned or []
        if packed.stored is not None:
            pinned.append(packed.stored)  # pinned when it was made
        for ref in packed.met:
            pinned.append(self._pin(ref))
        if packed.top is not None:
            task.refs = []
            for where, ref in packed.top:
                entry = self._pin(ref)
                pinned.append(entry)
                task.refs.append((where, entry))
                self._await_argument(task, entry)
        task.pinned = pinned or None
        if not task.waiting and self._fail_by_argument(task):
            task.waiting = -1  # never to be queued

    def _pin(self, ref: ObjectRef) -> Entry:
        entry = self._ownership.entry_of(ref)
        entry.pins += 1
        return entry

    def _await_argument(self, task: Task, entry: Entry) -> None:
        if entry.state != PENDING:
            return
        task.waiting += 1
        if entry.waiters is None:
            entry.waiters = []
        entry.waiters.append(_Dependency(task, self._ready))
        if entry.owner is not None:
            self._ownership.ask_owner(entry)

    def run_again(self, task: Task) -> None:
        """Start a task that has ended once more, for what was lost of it.

        It is queued once its arguments are there, in front: calls of its actor that
        were made later may wait for what it makes.
        """
        self.tasks[task.number] = task
        for _, entry in task.refs or ():
            self._await_argument(task, entry)
        if not task.waiting and not self._fail_by_argument(task):
            self.requeue([task])

    # --- pushing ---

    def dispatch(self, key: SchedulingKey) -> None:
        """Push what can be pushed; ask for more workers if need be."""
        if key.queue:
            for worker, tasks in key.assign():
                self._push(worker, tasks)
            if key.queue and isinstance(key, KeyQueue):
                self.leasing.request(key)

    def _push(self, worker: LeasedWorker, tasks: list[Task]) -> None:
        parts: list[bytes] = []
        known = worker.known
        for task in tasks:
            state = task.template
            if state.template_id not in known:
                known.add(state.template_id)
                parts.append(frame(encode(self._definition(worker, state))))
            if task.refs is None and task.stored_args is None:
                message = PushTask(
                    task.number, state.template_id, task.attempt, task.args
                )
            else:
                message = self._push_with_refs(task)
            body = encode(message)
            parts.append(LENGTH.pack(len(body)))
            parts.append(body)
        self._shared.lock.queue(worker.channel, b"".join(parts))
        if len(worker.in_flight) > 1:
            self.leasing.watch()

    def _definition(self, worker: LeasedWorker, state: TemplateState) -> DefineTask:
        define: DefineTask = state.define
        sent: set[bytes] = worker.channel.peer.functions
        if define.function_hash not in sent:
            sent.add(define.function_hash)
            return define
        return _without_function(define)

    def _push_with_refs(self, task: Task) -> PushTask:
        refs = [self.argument(where, entry) for where, entry in task.refs or ()]
        stored = None
        if task.stored_args is not None:
            stored = self.argument(0, task.stored_args)
        return PushTask(
            task.number,
            task.template.template_id,
            task.attempt,
            task.args,
            refs,
            stored,
        )

    def argument(self, where: int | str, entry: Entry) -> Argument:
        return argument(where, entry, self._shared.address)

    # --- answers: I/O thread, lock taken here ---

    def on_done(self, channel: Channel, messages: Sequence[TaskDone]) -> None:
        """The hot path: one small value each."""
        shared, tasks = self._shared, self.tasks
        with shared.lock:
            worker: LeasedWorker | None = channel.peer.leased
            for message in messages:
                task = tasks.get(message.number)
                if task is None or task.attempt != message.attempt:
                    continue
                del tasks[message.number]
                if worker is not None:
                    worker.in_flight.pop(message.number, None)
                task.template.note_run(message.run_s)
                entry = task.entry
                entry.task = None
                entry.size = len(message.value)
                entry.settle(INLINE, message.value)
                if task.pinned is not None:
                    self._table.unpin(task.pinned)
            self._after_answers(worker)

    def _after_answers(self, worker: LeasedWorker | None) -> None:
        self.settle()
        if worker is not None:
            worker.blocked = False
            self.dispatch(worker.key)
            if not worker.in_flight:
                worker.key.saturated = False
                self.leasing.fell_idle(worker)

    def settle(self) -> None:
        """Queue tasks whose arguments came, and tell about objects that ended."""
        ready = self._ready
        while ready:
            task = ready.popleft()
            if task.number not in self.tasks:
                continue
            key = task.template.key
            failed = self._fail_by_argument(task)
            if not failed and runs_again(task):
                key.put_back([task])
            elif not failed and not key.ordered:  # else it is in its place already
                key.queue.append(task)
            if not failed or key.ordered:  # others may have waited behind it
                self.dispatch(key)
        if self._table.freed or self._table.returned:
            self._shared.settle_releases()

    def on_replied(self, channel: Channel, messages: Sequence[TaskReplied]) -> None:
        retriable = {m.number for m in messages if self._raised_for_retry(m)}
        with self._shared.lock:
            worker: LeasedWorker | None = channel.peer.leased
            for message in messages:
                task = self.tasks.get(message.number)
                if task is None or task.attempt != message.attempt:
                    continue
                if worker is not None:
                    worker.in_flight.pop(message.number, None)
                self._note_kept(channel, message.kept)
                self._conclude(task, message, again=message.number in retriable)
            self._after_answers(worker)

    def _raised_for_retry(self, message: TaskReplied) -> bool:
        """Tell whether user code raised what its task is to be retried for.

        The lock is not held: unpickling an exception runs user code.
        """
        task = self.tasks.get(message.number)
        if message.outcome != "error" or task is None:
            return False
        allowed = task.template.retry_exceptions
        if isinstance(allowed, bool):
            return allowed
        try:
            error = deserialize(message.error)
        except Exception:  # of a class that this process cannot load
            log.debug("the exception of %s cannot be read", describe(task))
            return False
        cause = error.cause if isinstance(error, TaskError) else error
        return isinstance(cause, allowed)

    def _conclude(self, task: Task, message: TaskReplied, *, again: bool) -> None:
        outcome = message.outcome
        if outcome == "ok":
            task.template.note_run(message.run_s)
            self._succeed(task, message)
        elif outcome == "cancelled":
            self.fail(task, TaskCancelledError(describe(task)))
        elif again and task.retries_left:
            task.retries_left -= 1
            task.attempt += 1
            self.requeue([task])
        else:
            self.fail_with(task, message.error)

    def _succeed(self, task: Task, message: TaskReplied) -> None:
        del self.tasks[task.number]
        if runs_again(task):
            if task.stream is None:  # else all items have come already
                for value in message.values:
                    self.recovery.take(task, value)
        elif task.template.num_returns == DYNAMIC:
            self._returns.settle_dynamic(task, message.values)
        else:
            entries = task.entries or [task.entry]
            for value in message.values:
                self._returns.settle(task, entries[value.index], value)
        if task.stream is not None:
            self.streams.end(task.stream)
        pinned = task.pinned  # other pins if it runs again
        self.recovery.ended(task)
        if pinned is not None:
            self._table.unpin(pinned)

    def _note_kept(self, channel: Channel, kept: list[bytes]) -> None:
        """The worker goes on holding refs that came with a task: count it."""
        borrower = channel.peer.address
        for object_id in kept:
            entry = self._table.entries.get(object_id)
            if entry is None:
                continue
            if entry.owner is None:
                self._ownership.add_borrower(object_id, borrower)
            else:
                self._shared.peers.send(entry.owner, AddBorrower(object_id, borrower))

    # --- failures ---

    def requeue(self, tasks: list[Task]) -> None:
        """Run tasks again, before the others of their key."""
        keys = {id(task.template.key): task.template.key for task in tasks}
        for key in keys.values():
            key.put_back([task for task in tasks if task.template.key is key])
            self.dispatch(key)

    def fail(self, task: Task, error: BaseException) -> None:
        self.fail_with(task, serialize(error).to_bytes())

    def fail_with(self, task: Task, error: bytes) -> None:
        """Give all returns of a task an error.  Whoever waits for them goes on."""
        if self.tasks.pop(task.number, None) is None:
            return
        if not runs_again(task):
            if task.stream is not None:
                self.streams.fail(task, task.stream, error)
            entries = task.entries or [task.entry]
            for entry in entries:
                entry.task = None
                entry.settle(FAILED, error)
            if task.died_on:
                self._returns.free_strays(task, [entry.id for entry in entries])
        pinned = task.pinned  # other pins if it runs again
        self.recovery.failed(task, error)
        if pinned is not None:
            self._table.unpin(pinned)

    def _fail_by_argument(self, task: Task) -> bool:
        for _, entry in task.refs or ():
            if entry.state == FAILED:
                maker = task.entry.task
                self.fail_with(task, entry.value)
                if maker.__class__ is ActorClient:
                    self._shared.on_actor_unmade(maker, entry.value)
                return True
        return False


def _without_function(define: DefineTask) -> DefineTask:
    values = {name: getattr(define, name) for name in define.__struct_fields__}
    return DefineTask(**{**values, "function": None})


def describe(task: Task) -> str:
    """Return a task's name and id, for messages."""
    return f"{task.template.name} ({task.entry.id[:-4].hex()})"
