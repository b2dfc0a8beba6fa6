"""One call of user code, whoever runs it: its function, arguments, outcome, answer."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import cloudpickle

from sparkray.protocol.codec import encode
from sparkray.protocol.messages import (
    Argument,
    DefineTask,
    PushTask,
    ReturnValue,
    TaskDone,
    TaskReplied,
)
from sparkray.runtime.actor_exit import exit_actor
from sparkray.runtime.context import captures, running
from sparkray.runtime.core import Runtime
from sparkray.runtime.refs import collecting
from sparkray.store.serialize import ATOMS, deserialize, dump_atoms, serialize
from sparkray.transport.channel import Channel
from sparkray.worker.errors import exit_error, task_error
from sparkray.worker.limits import TimeLimits
from sparkray.worker.results import Answers, Results, reply, task_id_of


def _ready(instance: Any) -> bool:
    return True


def _terminate(instance: Any) -> None:
    exit_actor()


def _apply(
    instance: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return function(instance, *args, **kwargs)


#: Methods that no class has to have (see `api.actor_methods`).
_OF_EVERY_ACTOR: Final[dict[str, Callable[..., Any]]] = {
    "__ray_ready__": _ready,
    "__ray_terminate__": _terminate,
    "__ray_call__": _apply,
}


class Template:
    """A task definition as kept here: the function is loaded when first run."""

    __slots__ = ("calls", "captures", "define", "function")

    def __init__(self, define: DefineTask) -> None:
        self.define = define
        self.function: Callable[..., Any] | None = None
        self.calls = 0
        self.captures = captures(define.strategy)


class Calls:
    """What the main thread, an actor's threads and its event loop have in common."""

    def __init__(self, runtime: Runtime, answers: Answers, results: Results) -> None:
        self._shared = runtime.shared
        self._ownership = runtime.ownership
        self._fetcher = runtime.fetcher
        self._answers = answers
        self._results = results
        self.limits = TimeLimits(runtime.shared.loop)
        #: By hash: the pickle, where it lies in the store, or the function itself.
        self._functions: dict[bytes, Any] = {}
        self.instance: Any = None  #: of an actor: what methods are called on
        #: The process was told to end: what fails now does so because of that.
        self.leaving = False

    def define(self, channel: Channel, message: DefineTask) -> None:
        """Note what the owner at the other end says of its tasks."""
        if message.function is not None:
            self._functions.setdefault(message.function_hash, message.function)
            message.function = None
        elif message.stored_function is not None:
            known = self._functions.get(message.function_hash)
            if known is None or isinstance(known, Argument):  # not where it was before
                self._functions[message.function_hash] = message.stored_function
        if message.method and running.actor is not None:
            message.strategy = running.actor.strategy
        channel.peer.templates[message.template] = Template(message)

    def function_of(self, template: Template) -> Callable[..., Any]:
        define = template.define
        if define.method:
            known = self._method(define.method)
        else:
            known = self._functions[define.function_hash]
            if isinstance(known, Argument):
                known = self._fetcher.argument_value(known)
            if isinstance(known, bytes):
                known = cloudpickle.loads(known)
                self._functions[define.function_hash] = known
        function: Callable[..., Any] = known
        template.function = function
        return function

    def _method(self, name: str) -> Any:
        given = _OF_EVERY_ACTOR.get(name)
        if given is not None:
            return functools.partial(given, self.instance)
        return getattr(self.instance, name)

    def arguments(self, task: PushTask) -> tuple[Any, Any]:
        """Return a task's arguments, its refs resolved."""
        fetcher = self._fetcher
        if not task.args and not task.refs and task.stored_args is None:
            return (), {}
        if task.stored_args is not None:
            args, kwargs = fetcher.argument_value(task.stored_args)
        else:
            args, kwargs = deserialize(task.args)
        if task.refs:
            args = list(args)
            for argument in task.refs:
                value = fetcher.argument_value(argument)
                if isinstance(argument.where, int):
                    args[argument.where] = value
                else:
                    kwargs[argument.where] = value
        return args, kwargs

    def outcome(
        self, channel: Channel, task: PushTask, define: DefineTask, value: Any
    ) -> bytes | TaskReplied:
        """Return what to answer for a value: its bytes, if it is one and small."""
        limit = self._shared.settings.inline_max_bytes
        if value.__class__ in ATOMS and len(data := dump_atoms(value)) <= limit:
            return data
        with collecting(bequeath=True) as met:
            serialized = serialize(value, f"the result of {define.name}")
        if not met and serialized.size_bytes <= limit:
            return serialized.to_bytes()
        return self._results.large(channel, task, serialized, met)

    def several(
        self, channel: Channel, task: PushTask, define: DefineTask, value: Any
    ) -> TaskReplied:
        return self._results.several(channel, task, define, value)

    def send_item(
        self,
        channel: Channel,
        task: PushTask,
        define: DefineTask,
        item: Any,
        index: int,
    ) -> bool:
        return self._results.send_item(channel, task, define, item, index)

    def room_for_more(
        self, channel: Channel, task: PushTask, sent: int, limit: int
    ) -> concurrent.futures.Future[None] | None:
        return self._results.room_for_more(channel, task, sent, limit)

    def cancel_stream(self, channel: Channel, number: int) -> None:
        self._results.cancel_stream(channel, number)

    def end_stream(self, channel: Channel, task: PushTask, items: int) -> TaskReplied:
        self._results.forget_stream(channel, task)
        return self._results.end_stream(task, items)

    def is_several(self, define: DefineTask, value: Any) -> bool:
        return define.num_returns != 1 or inspect.isgenerator(value)

    def failure(
        self, task: PushTask, define: DefineTask, error: BaseException
    ) -> TaskReplied:
        """Return what to answer when user code raised."""
        if isinstance(error, SystemExit):
            name = define.name
            if running.task is not None:
                name = f"{name} ({running.task.task_id.hex()})"
            answer = reply(task, "exit", exit_error(name, error))
        else:
            answer = reply(task, "error", task_error(define.name, error))
        # It would keep the arguments alive; a class may refuse the assignment.
        BaseException.with_traceback(error, None)
        return answer

    def answer(
        self,
        channel: Channel,
        task: PushTask,
        define: DefineTask,
        outcome: bytes | TaskReplied,
        run_s: float,
    ) -> None:
        if define.timeout_s:
            outcome = self.limits.end(channel, task, define, outcome)
        if self.leaving and not isinstance(outcome, bytes) and outcome.outcome != "ok":
            return  # who called learns that the process has ended
        uncovered = self._shared.table.uncovered
        kept = self._kept(channel, task) if uncovered else None
        if isinstance(outcome, bytes):
            if not kept:
                body = encode(TaskDone(task.number, task.attempt, run_s, outcome))
            else:
                value = ReturnValue(0, outcome, len(outcome), [], [])
                outcome = reply(task, "ok", values=[value])
        if isinstance(outcome, TaskReplied):
            outcome.run_s = run_s
            outcome.kept = kept or []
            body = encode(outcome)
        self._answers.add(channel, body, hold=define.batch)

    def _kept(self, channel: Channel, task: PushTask) -> list[bytes]:
        """Return the refs that came with a task and are still in use here."""
        self._shared.drain()
        task_id = task_id_of(channel, task)
        with self._shared.lock:
            if channel.is_closed:
                self._ownership.register_uncovered(task_id)
                return []
            return [entry.id for entry in self._shared.table.take_uncovered(task_id)]
