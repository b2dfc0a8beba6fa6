"""A worker process that is an actor: makes the instance, runs its methods.

plain        calls run on the main thread, in order of arrival, like tasks
threaded     each concurrency group has so many threads
async        coroutines run on an event loop, so many at a time for each group;
             methods that are no coroutines run on threads, so they never stop the
             loop; the constructor runs on the loop, for it may create tasks there
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import cloudpickle

from sparkray.exceptions import ActorDiedError, ObjectLostError
from sparkray.protocol import actors as p
from sparkray.protocol.codec import decode_as, encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import (
    ActorExiting,
    ActorStarted,
    BecomeActor,
    CancelTask,
    PushTask,
    TaskReplied,
)
from sparkray.runtime.actor_exit import ActorExit
from sparkray.runtime.context import ActorIdentity, RunningTask, captures, running
from sparkray.runtime.core import Runtime
from sparkray.runtime.functions import STREAMING
from sparkray.transport.channel import Channel
from sparkray.transport.errors import to_wire
from sparkray.worker.calls import Calls, Template
from sparkray.worker.devices import show_devices
from sparkray.worker.errors import task_error, this_process
from sparkray.worker.leaving import Departure, leave_worker, run_exit_functions
from sparkray.worker.results import Answers, reply, task_id_of

log = logging.getLogger(__name__)

#: How many coroutines of an async actor run at a time unless it says otherwise.
ASYNC_CONCURRENCY: Final = 1_000
#: How long an actor that ends itself waits for its last answers to leave.
LAST_WORDS_S: Final = 0.2

_clock = time.perf_counter
_Key = tuple[Channel, int]


class MainThread(Protocol):
    """What an actor needs of the executor that owns the main thread."""

    def enqueue(self, channel: Channel, messages: Sequence[PushTask]) -> None: ...
    def mark_output(self, name: str) -> None: ...
    def end(self) -> None: ...

    @property
    def broken(self) -> BaseException | None: ...


class ActorHost:
    """The actor of this process."""

    def __init__(
        self,
        runtime: Runtime,
        calls: Calls,
        answers: Answers,
        main: MainThread,
        message: BecomeActor,
    ) -> None:
        self._runtime = runtime
        runtime.ownership.bequeaths = False
        self._calls, self._answers, self._main = calls, answers, main
        self._creation = decode_as(p.ActorCreation, message.creation)
        self._incarnation = message.incarnation
        self._gpu_ids = message.gpu_ids
        self._pools: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: dict[str, asyncio.Semaphore] = {}
        #: Not begun yet; whoever pops an item may decide on it.
        self._pending: dict[_Key, PushTask] = {}
        self._coroutines: dict[_Key, asyncio.Task[None]] = {}
        self._departure = Departure(self._say_goodbye)
        self._concurrent = False
        self._async_methods: frozenset[str] = frozenset()

    # --- the instance: main thread ---

    def construct(self) -> None:
        """Make the instance, and tell the agent how that went."""
        creation = self._creation
        name = f"{creation.class_name}.__init__"
        running.actor = ActorIdentity(
            creation.actor_id,
            creation.name,
            self._incarnation,
            creation.resources,
            creation.handle,
            creation.strategy,
        )
        running.main = RunningTask(
            creation.actor_id,
            name,
            creation.depth,
            creation.resources,
            creation.strategy.group_id,
            captures(creation.strategy),
        )
        self._main.mark_output(creation.class_name)
        show_devices(self._gpu_ids)
        if self._main.broken is not None:
            error = encode(to_wire(self._main.broken))
            started = ActorStarted(error, str(self._main.broken))
            self._runtime.shared.agent.send(started)
            return
        started = ActorStarted(b"", "")
        try:
            cls = cloudpickle.loads(creation.class_bytes)
            args, kwargs = self._arguments()
            self._prepare(cls)
            self._calls.instance = self._make(cls, args, kwargs)
            del args, kwargs
        except BaseException as error:
            text = f"its constructor raised {_text(error)}"
            started = ActorStarted(task_error(name, error), text)
            BaseException.with_traceback(error, None)
        finally:
            running.main = None
        self._keep_refs()
        self._runtime.shared.agent.send(started)

    def _arguments(self) -> tuple[Any, Any]:
        creation = self._creation
        task = PushTask(0, 0, 1, creation.args, creation.refs, creation.stored_args)
        try:
            return self._calls.arguments(task)
        except ObjectLostError as error:
            if self._incarnation == 1:
                raise
            limit = self._runtime.shared.settings.inline_max_bytes
            raise ActorDiedError(
                "it cannot start again: an argument of its constructor went with the"
                f" process that owned it ({error}); only values up to {limit} bytes"
                " outlive that process: let a detached actor load larger ones itself"
            ) from None

    def _make(self, cls: type, args: Any, kwargs: Any) -> Any:
        """Make the instance; that of an async actor on its event loop."""
        if self._loop is None:
            return cls(*args, **kwargs)

        async def make() -> tuple[Any, BaseException | None]:
            try:
                return cls(*args, **kwargs), None
            except BaseException as error:  # some would end the loop
                return None, error

        instance, error = asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        if error is not None:
            raise error
        return instance

    def _keep_refs(self) -> None:
        """Count the refs that the constructor was given and the instance keeps."""
        shared = self._runtime.shared
        shared.drain()
        with shared.lock:
            self._runtime.ownership.register_uncovered(self._creation.actor_id)

    def _prepare(self, cls: type) -> None:
        """Set up threads and loop before the constructor may want them."""
        creation = self._creation
        self._async_methods = frozenset(
            name for name in dir(cls) if _is_async(getattr(cls, name, None))
        )
        is_async = bool(self._async_methods)
        limit = creation.max_concurrency or (ASYNC_CONCURRENCY if is_async else 1)
        self._concurrent = is_async or limit > 1 or bool(creation.groups)
        if not self._concurrent:
            return
        sync_limit = creation.max_concurrency or 1
        for group, threads in {"": sync_limit, **creation.groups}.items():
            self._pools[group] = concurrent.futures.ThreadPoolExecutor(
                threads, thread_name_prefix=f"sparkray-{group or 'actor'}"
            )
        if is_async:
            self._loop = asyncio.new_event_loop()
            for group, slots in {"": limit, **creation.groups}.items():
                self._slots[group] = asyncio.Semaphore(slots)
            threading.Thread(
                target=self._run_loop,
                args=(self._loop,),
                daemon=True,
                name="sparkray-async",
            ).start()

    # --- calls: I/O thread ---

    def push(self, channel: Channel, messages: Sequence[PushTask]) -> None:
        """Take calls in; each goes where its method runs."""
        if not self._concurrent:
            self._main.enqueue(channel, messages)
            return
        for task in messages:
            template: Template = channel.peer.templates[task.template]
            self._pending[channel, task.number] = task
            group = template.define.group
            if template.define.method in self._async_methods:
                coroutine = self._run_coroutine(channel, task, template, group)
                assert self._loop is not None
                self._loop.call_soon_threadsafe(
                    self._begin, channel, task.number, coroutine
                )
            else:
                pool = self._pools.get(group) or self._pools[""]
                pool.submit(self._run_in_thread, channel, task, template)

    def cancel(self, channel: Channel, message: CancelTask) -> None:
        """Stop a call: one that waits, a coroutine, or a generator where it yields; any
        other running method goes on."""
        task = self._pending.pop((channel, message.number), None)
        if task is not None:
            channel.send(frame(encode(reply(task, "cancelled"))))
            return
        self._calls.cancel_stream(channel, message.number)
        running_one = self._coroutines.get((channel, message.number))
        if running_one is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(running_one.cancel)
        if message.recursive:
            self._cancel_children((channel, message.number))

    def caller_lost(self, channel: Channel) -> None:
        """Nobody wants the results of these calls: stop as `cancel` does."""
        for key in list(self._pending):
            if key[0] is channel:
                self._pending.pop(key, None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_coroutines_of, channel)

    def _stop_coroutines_of(self, channel: Channel) -> None:
        """On the event loop, which alone adds and removes them."""
        for key, task in list(self._coroutines.items()):
            if key[0] is channel:
                task.cancel()
                self._cancel_children(key)

    def _cancel_children(self, key: _Key) -> None:
        channel, number = key
        caller: bytes = channel.peer.address.worker_id
        task_id = caller + number.to_bytes(8, "big")
        self._runtime.canceller.cancel_children(task_id)

    # --- threads ---

    def _run_in_thread(
        self, channel: Channel, task: PushTask, template: Template
    ) -> None:
        if not self._may_begin(channel, task):
            return
        try:
            outcome, run_s = self._outcome_here(channel, task, template)
            if outcome is not None:
                self._calls.answer(channel, task, template.define, outcome, run_s)
                self._answers.flush()
        finally:
            self._departure.done()

    def _may_begin(self, channel: Channel, task: PushTask) -> bool:
        waiting = self._pending.pop((channel, task.number), None)
        return waiting is not None and self._departure.begin()

    def _outcome_here(
        self, channel: Channel, task: PushTask, template: Template
    ) -> tuple[bytes | TaskReplied | None, float]:
        """Run a call; return what to answer, if at all, and how long it took."""
        define, calls = template.define, self._calls
        running.set_here(self._task(channel, task, template))
        if define.timeout_s:
            calls.limits.begin(channel, task, define)
        started = _clock()
        outcome: bytes | TaskReplied | None
        try:
            function = template.function or calls.function_of(template)
            args, kwargs = calls.arguments(task)
            value = function(*args, **kwargs)
            if calls.is_several(define, value):
                outcome = calls.several(channel, task, define, value)
            else:
                outcome = calls.outcome(channel, task, define, value)
        except BaseException as error:
            if is_exit(error):
                self.leave(error)
                outcome = None
            else:
                outcome = calls.failure(task, define, error)
        finally:
            running.set_here(None)
            self._wake_loop()
        return outcome, _clock() - started

    def _wake_loop(self) -> None:
        """A method may have set an event of the loop's, which alone wakes nobody."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(int)

    def _task(
        self, channel: Channel, task: PushTask, template: Template
    ) -> RunningTask:
        define = template.define
        return RunningTask(
            task_id_of(channel, task),
            define.name,
            define.depth,
            self._creation.resources,
            define.strategy.group_id,
            template.captures,
        )

    # --- event loop ---

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop, also on after a task of the user's that wanted to end it."""
        while True:
            try:
                loop.run_forever()
            except BaseException as error:
                if is_exit(error):
                    self.leave(error)
                else:
                    log.exception("a task on the actor's event loop raised")

    def _begin(
        self, channel: Channel, number: int, coroutine: Coroutine[Any, Any, None]
    ) -> None:
        assert self._loop is not None
        key = channel, number
        task = self._loop.create_task(coroutine)
        self._coroutines[key] = task
        task.add_done_callback(lambda _: self._coroutines.pop(key, None))

    async def _run_coroutine(
        self, channel: Channel, task: PushTask, template: Template, group: str
    ) -> None:
        slots = self._slots.get(group) or self._slots[""]
        async with slots:
            if not self._may_begin(channel, task):
                return
            try:
                running.set_here(self._task(channel, task, template))
                if template.define.timeout_s:
                    self._calls.limits.begin(channel, task, template.define)
                started = _clock()
                outcome = await self._outcome(channel, task, template)
                if outcome is not None:
                    run_s = _clock() - started
                    self._calls.answer(channel, task, template.define, outcome, run_s)
                    self._answers.flush()
            finally:
                self._departure.done()

    async def _outcome(
        self, channel: Channel, task: PushTask, template: Template
    ) -> bytes | TaskReplied | None:
        """Run a coroutine; return what to answer, if at all."""
        define, calls = template.define, self._calls
        try:
            function = template.function or calls.function_of(template)
            args, kwargs = await self._async_arguments(task)
            if inspect.isasyncgenfunction(function):
                items = function(*args, **kwargs)
                return await self._stream(channel, task, template, items)
            value = await function(*args, **kwargs)
            if define.num_returns != 1:
                return calls.several(channel, task, define, value)
            return calls.outcome(channel, task, define, value)
        except asyncio.CancelledError:
            return reply(task, "cancelled")
        except BaseException as error:
            if is_exit(error):
                self.leave(error)
                return None
            return calls.failure(task, define, error)

    async def _async_arguments(self, task: PushTask) -> tuple[Any, Any]:
        """Arguments from the store may have to come from far: not on the loop."""
        if not task.refs and task.stored_args is None:
            return self._calls.arguments(task)
        assert self._loop is not None
        here = contextvars.copy_context()  # what they bring came with this call
        fetch = functools.partial(here.run, self._calls.arguments, task)
        return await self._loop.run_in_executor(None, fetch)

    async def _stream(
        self, channel: Channel, task: PushTask, template: Template, items: Any
    ) -> TaskReplied:
        define = template.define
        if define.num_returns != STREAMING:
            values = [item async for item in items]
            return self._calls.several(channel, task, define, values)
        sent = 0
        async for item in items:
            wanted = self._calls.send_item(channel, task, define, item, sent)
            sent += 1
            if not wanted:
                await items.aclose()
                break
            if define.backpressure:
                room = self._calls.room_for_more(
                    channel, task, sent, define.backpressure
                )
                if room is not None:
                    await asyncio.wrap_future(room)
        return self._calls.end_stream(channel, task, sent)

    # --- the end ---

    def leave(self, error: BaseException) -> None:
        """The actor ends itself: no restart, and no answer to the call that did it.

        On the main thread this does not return.  Elsewhere other calls may run: no
        further one begins, and the actor ends with the last of them.
        """
        reason = "it called exit_actor()"
        if isinstance(error, SystemExit):
            reason = f"{this_process()}: it called sys.exit({error.code!r})"
        if self._concurrent:
            self._departure.want(reason)
            return
        self._tell_of_end(reason)
        run_exit_functions()
        with contextlib.suppress(OSError):
            self._runtime.close("the actor ends")
        leave_worker(0)

    def _say_goodbye(self, reason: str) -> None:
        """No call runs any more."""
        self._tell_of_end(reason)
        self._main.end()

    def _tell_of_end(self, reason: str) -> None:
        self._answers.flush()
        self._runtime.shared.agent.send(ActorExiting(reason))
        time.sleep(LAST_WORDS_S)


def is_exit(error: BaseException) -> bool:
    return isinstance(error, (ActorExit, SystemExit))


def _text(error: BaseException) -> str:
    """Return class and text of an exception, whose class may be the user's."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _is_async(method: Callable[..., Any] | None) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
