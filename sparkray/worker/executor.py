"""Runs tasks: the only module that calls user code.

    I/O thread   PushTask frames -> queue            (cancel and reclaim take from it)
    main thread  queue -> arguments -> user function -> answer

The main thread sends its answers by itself, in batches while tasks are short; a timer
of the I/O thread sends what a longer task would hold back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    BecomeActor,
    Blocked,
    CancelTask,
    DefineTask,
    Exit,
    LeaseWanted,
    PushTask,
    ReclaimTasks,
    Retiring,
    StreamConsumed,
    TaskReplied,
    TasksReclaimed,
    Unblocked,
    UseDevices,
    WorkerSpent,
    YieldLease,
)
from sparkray.protocol.zygote import OMP_FOLLOWS
from sparkray.resources import CPU, UNIT, Vector
from sparkray.runtime import core
from sparkray.runtime.connection import ConnectOptions
from sparkray.runtime.context import RunningTask, running
from sparkray.transport.channel import Channel
from sparkray.worker import imports
from sparkray.worker.actor import ActorHost, is_exit
from sparkray.worker.calls import Calls, Template
from sparkray.worker.children import end_child
from sparkray.worker.devices import show_devices
from sparkray.worker.interrupts import Interrupts
from sparkray.worker.leaving import leave_worker, run_exit_functions
from sparkray.worker.results import Answers, Results, reply, task_id_of
from sparkray.worker.setup import run_hook
from sparkray.worker.start import WorkerStart

log = logging.getLogger(__name__)

#: The I/O thread sends answers that are held back longer than this.
STALE_S = 0.002
#: How often a worker that is asked to end looks whether its objects are still in use.
EXIT_CHECK_S = 1.0

_clock = time.perf_counter


class Executor:
    """The task side of a worker process."""

    def __init__(self, runtime: core.Runtime) -> None:
        self._runtime = runtime
        self._shared = runtime.shared
        #: Tasks, what an actor is made from, or None for the end.
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Not started yet; whoever pops an item (one atomic step) may decide on it.
        self._pending: dict[tuple[Channel, int], PushTask] = {}
        self._current: tuple[Channel, PushTask] | None = None
        self._blocked = False
        self._waits: set[object] = set()  #: waits of the running task's threads
        self._waits_lock = threading.Lock()  #: guards the two above
        self._retired = False  #: runs nothing more; the owner knows
        self._holder: Channel | None = None  #: who leases this worker
        self._answers = Answers()
        results = Results(runtime, self._answers, self._while_blocked)
        self._results = results
        self._calls = Calls(runtime, self._answers, results)
        self._calls.limits.stop = self._stop_overdue
        self._actor: ActorHost | None = None
        self._stale_check_due = False
        self._log_name = ""
        self._omp_follows = os.environ.pop(OMP_FOLLOWS, "") != ""
        self._last_resources: Vector = {}
        self._interrupts = Interrupts(
            self._shared.loop,
            lambda: self._current,
            (Executor._call.__code__, Results._send_items.__code__),
        )
        self._leaving = False  #: told to end at once
        self._forked = False  #: this is a child that a task forked
        #: Why this worker can run nothing: its set-up hook failed.
        self.broken: RuntimeEnvSetupError | None = None
        self._install()

    def _install(self) -> None:
        self._shared.peers.handlers.update(
            {
                DefineTask: self._on_define,
                PushTask: self._on_push,
                CancelTask: self._on_cancel,
                ReclaimTasks: self._on_reclaim,
                StreamConsumed: self._results.on_consumed,
                UseDevices: _on_devices,
            }
        )
        self._shared.blocking = self._while_blocked
        self._runtime.on_agent_message = self._from_agent
        self._runtime.on_agent_lost = lambda reason: os._exit(1)
        self._runtime.on_peer_lost = self._owner_lost
        os.register_at_fork(after_in_child=self._note_fork)

    # --- I/O thread ---

    def _on_define(self, channel: Channel, messages: Sequence[DefineTask]) -> None:
        for message in messages:
            self._calls.define(channel, message)

    def _on_push(self, channel: Channel, messages: Sequence[PushTask]) -> None:
        if self._actor is not None:
            self._actor.push(channel, messages)
            return
        self._holder = channel
        if self._blocked:
            self._bounce(channel, [message.number for message in messages])
            return
        self.enqueue(channel, messages)

    def enqueue(self, channel: Channel, messages: Sequence[PushTask]) -> None:
        """Queue tasks for the main thread."""
        for message in messages:
            self._pending[channel, message.number] = message
            self._queue.put((channel, message))
        if not self._stale_check_due:
            self._stale_check_due = True
            self._shared.loop.call_later(STALE_S, self._flush_stale)

    def _bounce(self, channel: Channel, numbers: list[int]) -> None:
        channel.send(frame(encode(TasksReclaimed(numbers, blocked=self._blocked))))

    def _on_reclaim(self, channel: Channel, messages: Sequence[ReclaimTasks]) -> None:
        for message in messages:
            numbers = [
                number
                for number in message.numbers
                if self._pending.pop((channel, number), None) is not None
            ]
            channel.send(frame(encode(TasksReclaimed(numbers))))

    def _on_cancel(self, channel: Channel, messages: Sequence[CancelTask]) -> None:
        for message in messages:
            task = self._pending.pop((channel, message.number), None)
            if task is not None:
                channel.send(frame(encode(reply(task, "cancelled"))))
                continue
            if self._actor is not None:
                self._actor.cancel(channel, message)
                continue
            current = self._current
            if current is None or current[0] is not channel:
                continue
            if current[1].number == message.number:
                self._interrupts.cancel(current)
                if message.recursive:
                    self._runtime.canceller.cancel_children(task_id_of(*current))

    def _stop_overdue(self, key: tuple[Channel, int]) -> None:
        """The time of a running call is up: stop it and what it started."""
        current = self._current
        if current is not None and (current[0], current[1].number) == key:
            self._interrupts.cancel(current)
            self._runtime.canceller.cancel_children(task_id_of(*current))
        elif self._actor is not None:
            self._actor.cancel(key[0], CancelTask(key[1], recursive=True))

    def _owner_lost(self, channel: Channel) -> None:
        """Whoever called these tasks is gone: nobody wants their results."""
        for key in list(self._pending):
            if key[0] is channel:
                self._pending.pop(key, None)
        current = self._current
        if self._actor is not None:
            self._actor.caller_lost(channel)
        elif current is not None and current[0] is channel:
            self._interrupts.cancel(current)
            self._runtime.canceller.cancel_children(task_id_of(*current))
        if self._holder is channel:
            self._holder = None
        self._results.wake_stalled()

    def _from_agent(self, message: Any) -> None:
        if isinstance(message, LeaseWanted):
            busy = self._current is not None or self._pending
            if self._holder is not None and not (busy and message.if_idle):
                self._holder.send(frame(encode(YieldLease())))
        elif isinstance(message, BecomeActor):
            if self._actor is None:
                self._actor = ActorHost(
                    self._runtime, self._calls, self._answers, self, message
                )
                self._queue.put(self._actor)
        elif isinstance(message, Exit):
            if message.force:
                self._exit_now()
            else:
                self._exit_when_unneeded()

    def _exit_when_unneeded(self) -> None:
        """End the process unless it runs something or others use what it owns."""
        busy = self._current is not None or self._pending
        if busy or self._shared.table.is_needed():
            self._shared.loop.call_later(EXIT_CHECK_S, self._exit_when_unneeded)
        else:
            self._queue.put(None)

    def _exit_now(self) -> None:
        """End the process after what it was told to do then; the agent sees to it that
        this takes not long."""
        if self._leaving:
            return
        self._leaving = self._calls.leaving = True
        self._pending.clear()
        if self._current is None and running.main is None:
            self.end()
        else:  # the main thread may never come back from user code
            threading.Thread(target=leave_worker, args=(0,), daemon=True).start()

    def end(self) -> None:
        """Have the main thread, which runs nothing, end this process."""
        self._queue.put(None)

    def _flush_stale(self) -> None:
        self._answers.flush()
        if self._pending or self._current is not None:
            self._shared.loop.call_later(STALE_S, self._flush_stale)
        else:
            self._stale_check_due = False

    # --- main thread ---

    def run(self) -> None:
        """Run tasks until the agent ends this worker."""
        work = self._queue
        while True:
            if work.empty():
                self._answers.flush()
            item = work.get()
            if item is None:
                return
            if isinstance(item, ActorHost):
                item.construct()
                if self._waits:
                    self._end_waits()
                continue
            channel, task = item
            known = self._pending.pop((channel, task.number), None)
            if known is None:
                continue
            if self._retired:  # pushed by somebody who does not know it yet
                self._bounce(channel, [task.number])
                channel.send(frame(encode(Retiring())))
            else:
                self._current = item
                try:
                    self._execute(channel, task)
                finally:
                    self._current = None
                    running.main = None
                    if self._waits:  # of threads that it left behind
                        self._end_waits()

    def _execute(self, channel: Channel, task: PushTask) -> None:
        template: Template = channel.peer.templates[task.template]
        define = template.define
        running.main = RunningTask(
            task_id_of(channel, task),
            define.name,
            define.depth,
            define.resources,
            define.strategy.group_id,
            template.captures,
        )
        if define.name != self._log_name:
            self.mark_output(define.name)
        if define.resources is not self._last_resources:
            self._follow_cpus(define.resources)
        if channel.peer.gpu_ids is not running.gpu_ids and self._actor is None:
            show_devices(channel.peer.gpu_ids)
        self._interrupts.ready()
        if define.timeout_s:
            self._calls.limits.begin(channel, task, define)
        started = _clock()
        outcome: bytes | TaskReplied
        try:
            outcome = self._call(channel, task, template)
        except BaseException as error:
            if self._forked:
                end_child(error)
            if self._actor is not None and is_exit(error):
                self._actor.leave(error)
            outcome = self._failure(task, define, error)
        run_s = _clock() - started
        if define.max_calls:
            self._count_call(template)
        self._calls.answer(channel, task, define, outcome, run_s)
        if self._retired:
            self._answers.flush()
            channel.send(frame(encode(Retiring())))

    def _call(
        self, channel: Channel, task: PushTask, template: Template
    ) -> bytes | TaskReplied:
        """Run user code; return the value's bytes or a `TaskReplied`."""
        calls = self._calls
        function = template.function or calls.function_of(template)
        define = template.define
        if self.broken is not None:
            raise self.broken
        args, kwargs = calls.arguments(task)
        try:
            self._interrupts.enter(self._current)
            value = function(*args, **kwargs)
            if self._forked:
                end_child(None)
            if define.num_returns != 1 or calls.is_several(define, value):
                return self._results.several(channel, task, define, value)
        finally:
            self._interrupts.leave()
        return calls.outcome(channel, task, define, value)

    def _failure(
        self, task: PushTask, define: DefineTask, error: BaseException
    ) -> TaskReplied:
        if isinstance(error, KeyboardInterrupt) and self._was_stopped():
            error.__traceback__ = None
            return reply(task, "cancelled")
        return self._calls.failure(task, define, error)

    def _was_stopped(self) -> bool:
        return self._interrupts.stopped(self._current)

    def _note_fork(self) -> None:
        self._forked = True

    def _count_call(self, template: Template) -> None:
        """Take no further task after the last one, and say so before it is answered:
        the answer frees this worker for others."""
        template.calls += 1
        if template.calls >= template.define.max_calls:
            self._retired = True
            self._shared.agent.send(WorkerSpent())

    def mark_output(self, name: str) -> None:
        """Tell the log reader whose output follows."""
        self._log_name = name
        mark = f"\x01task:{name}\n".encode()
        for fd in (1, 2):
            with contextlib.suppress(OSError):  # closed by a task, or the disk is full
                os.write(fd, mark)

    def _follow_cpus(self, resources: Vector) -> None:
        """Libraries that this task loads shall use as many threads as it has CPUs."""
        self._last_resources = resources
        if self._omp_follows:
            cpus = max(1, resources.get(CPU, 0) // UNIT)
            os.environ["OMP_NUM_THREADS"] = str(cpus)

    @contextlib.contextmanager
    def _while_blocked(self) -> Iterator[None]:
        """Around a wait of user code: lend the CPU on, hand back what waits behind."""
        current = self._current
        if current is None and running.main is None:
            yield
            return
        wait = object()
        try:
            self._begin_wait(wait, None if current is None else current[0])
            yield
        finally:
            self._end_waits(wait)

    def _begin_wait(self, wait: object, channel: Channel | None) -> None:
        self._answers.flush()
        with self._waits_lock:
            self._waits.add(wait)
            if self._blocked:
                return
            self._blocked = True
            if channel is not None and self._actor is None:  # an actor's calls stay
                self._hand_back(channel)
            self._shared.agent.send(Blocked())

    def _hand_back(self, channel: Channel) -> None:
        """Return what has not begun to its owner, to be run elsewhere."""
        waiting = [key for key in list(self._pending) if key[0] is channel]
        numbers = [
            key[1] for key in waiting if self._pending.pop(key, None) is not None
        ]
        if numbers:
            self._bounce(channel, numbers)

    def _end_waits(self, *waits: object) -> None:
        """End some waits, or (none given) all of a task that has ended."""
        with self._waits_lock:
            self._waits = self._waits - set(waits) if waits else set()
            if self._blocked and not self._waits:
                self._blocked = False
                self._shared.agent.send(Unblocked())


def _on_devices(channel: Channel, messages: Sequence[UseDevices]) -> None:
    """Whoever leases this worker says which GPUs its next tasks have."""
    channel.peer.gpu_ids = messages[-1].gpu_ids


def run_worker(start: WorkerStart) -> None:
    """Be a worker process until the agent ends it.

    Raises:
        ConnectionError: the agent is gone or refuses.
    """
    made: list[Executor] = []
    options = ConnectOptions(
        agent_socket=start.agent_socket,
        token=start.token,
        kind="worker",
        config=None,
        job_id=start.job_id,
        worker_id=start.worker_id,
        socket_dir=os.path.join(start.session_dir, "sockets"),
        host=start.host,
        ports=(start.port_min, start.port_max),
        runtime_env=start.runtime_env,
    )
    runtime = core.connect(options, lambda runtime: made.append(Executor(runtime)))
    _extend_path(start.import_path, runtime.config.sys_path)
    imports.install(runtime)
    try:
        made[0].broken = run_hook(start.setup_hook)
        made[0].run()
    finally:
        run_exit_functions()
        runtime.close("the worker ends")


def _extend_path(first: Sequence[str], directories: Sequence[str]) -> None:
    """Let imports find what the driver's imports find, in the driver's order.

    Args:
        first: what is in front already, and stays there.
    """
    known = set(sys.path)
    at = len(first)
    sys.path[at:at] = [directory for directory in directories if directory not in known]
