"""`Executor`: the standard library's interface, over tasks.

Work waits here until one of ``max_workers`` places is free, so that what has not begun
can be cancelled.  Results come back through one thread a executor, which also runs the
callbacks of futures and starts what waits.  Inside a task another thread waits beside
it for what runs: so the task lends its CPU, and executors nest without a deadlock.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import contextlib
import functools
import itertools
import logging
import queue
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

import sparkray
from sparkray.exceptions import SparkrayError, TaskError, WorkerCrashedError
from sparkray.util.deadlines import deadline_after

__all__ = ["BrokenCall", "BrokenExecutor", "Executor"]

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BrokenCall(WorkerCrashedError, BrokenExecutor):
    """The process that ran a call ended.  Unlike a process pool, which is of no use
    then, the executor goes on in another one."""


class Executor(concurrent.futures.Executor):
    """Runs calls as tasks on the cluster.

    What a call raises is the exception of its future as it was raised; the `TaskError`
    with the traceback from there is chained to it.

    Args:
        max_workers: how many calls run at a time; default: as many as the cluster has
            CPUs.
        initializer: called once in each process before its first call; if it raises,
            all calls fail with `BrokenExecutor`.
        initargs: its arguments.
        task_options: options of the tasks, as for `sparkray.remote`.

    Raises:
        TypeError, ValueError: a wrong argument.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        task_options: Mapping[str, Any] | None = None,
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if not sparkray.is_initialized():
            sparkray.init()
        if max_workers is None:
            max_workers = max(1, int(sparkray.cluster_resources().get("CPU", 1)))
        setup = None
        if initializer is not None:
            made = _Setup(uuid.uuid4().hex, initializer, tuple(initargs))
            setup = sparkray.put(made)
        options = {"name": "call", **(task_options or {})}
        task = sparkray.remote(_call).options(**options)
        self._pump = _Pump(max_workers, task, setup)
        weakref.finalize(self, self._pump.close).atexit = False

    def submit(
        self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Call ``fn(*args, **kwargs)`` in a task.

        Raises:
            RuntimeError: the executor was shut down.
            BrokenExecutor: the initializer has raised.
        """
        future: Future[_T] = Future()
        self._pump.add(_Work(future, functools.partial(fn, *args, **kwargs)))
        return future

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[_T]:
        """Yield ``fn(*items)`` for the items of all iterables, in their order.

        Args:
            timeout: seconds that all results together may take; None: no limit.
            chunksize: how many calls one task makes.

        Raises:
            TimeoutError: while iterating: time ran out; what waits is cancelled.
            ValueError: ``chunksize`` is less than 1.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        deadline = deadline_after(timeout)
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        futures = [self.submit(_call_each, fn, chunk) for chunk in chunks]
        return _results(futures, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: return only when all calls have ended.
            cancel_futures: cancel those that have not begun.
        """
        self._pump.close(cancel=cancel_futures)
        if wait:
            self._pump.join()

    def abort(self) -> None:
        """Take no more calls, cancel those that wait, and stop those that run."""
        self._pump.close(cancel=True)
        for ref in self._pump.running():
            sparkray.cancel(ref)


@dataclass(frozen=True)
class _Setup:
    """What a process has to do before its first call for one executor."""

    executor_id: str
    initializer: Callable[..., object]
    initargs: tuple[Any, ...]


@dataclass(eq=False)
class _Work:
    """A call from its submission until its future is done."""

    future: Future[Any]
    call: Callable[[], Any] | None  #: None once it was sent
    ref: Any = None
    outcome: Any = field(default=None)  #: the future of the ref


class _InitializerError(Exception):
    """The initializer raised in a process."""


#: Wakes the pump's thread to look whether it may end.
_WAKE: Final = None
_alive: weakref.WeakSet[_Pump] = weakref.WeakSet()


class _Pump:
    """Sends work while there are places; its thread ends once it is closed and idle."""

    def __init__(self, places: int, task: Any, setup: Any) -> None:
        self._places, self._task, self._setup = places, task, setup
        context = sparkray.get_runtime_context()
        self.is_in_task = context.get_task_id() is not None
        self._lock = threading.Lock()  #: guards all below; nothing is called under it
        self._waiting: deque[_Work] = deque()
        self._running: set[_Work] = set()
        self._thread: threading.Thread | None = None
        self._lends = False  #: whether the thread beside is there
        self._closed = False
        self._broken = ""
        self._done: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        _alive.add(self)

    def add(self, work: _Work) -> None:
        with self._lock:
            if self._broken:
                raise BrokenExecutor(self._broken)
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sparkray-executor", daemon=True
                )
                self._thread.start()
        self._send()

    def close(self, *, cancel: bool = False) -> None:
        with self._lock:
            self._closed = True
            dropped = [*self._waiting] if cancel else []
            if cancel:
                self._waiting.clear()
        for work in dropped:
            if work.future.cancel():
                work.future.set_running_or_notify_cancel()
        self._done.put(_WAKE)

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def running(self) -> list[Any]:
        """Return the refs of what was sent and has not ended."""
        with self._lock:
            return [work.ref for work in self._running if work.ref is not None]

    def _send(self) -> None:
        """Send what there are places for; any thread."""
        while (work := self._next()) is not None:
            call, work.call = work.call, None
            try:
                if not sparkray.is_initialized():  # a call must not start a session
                    raise SparkrayError("the cluster was left before the call began")
                work.ref = self._task.remote(self._setup, call)
                work.outcome = work.ref.future()
            except Exception as error:
                work.outcome = Future()
                work.outcome.set_exception(error)
            work.outcome.add_done_callback(functools.partial(self._note, work))
            self._lend()

    def _lend(self) -> None:
        """Have a thread wait for what runs, as a task lends its CPU in `wait` only."""
        with self._lock:
            if self._lends or not self.is_in_task:
                return
            self._lends = True
        threading.Thread(
            target=self._wait_beside, name="sparkray-executor-wait", daemon=True
        ).start()

    def _wait_beside(self) -> None:
        while True:
            with self._lock:
                ref = next((work.ref for work in self._running if work.ref), None)
                if ref is None:
                    self._lends = False
                    return
            with contextlib.suppress(SparkrayError):
                sparkray.wait([ref])

    def _next(self) -> _Work | None:
        """Take a place for the next work that was not cancelled."""
        while True:
            with self._lock:
                if not self._waiting or len(self._running) >= self._places:
                    return None
                work = self._waiting.popleft()
                self._running.add(work)
            if work.future.set_running_or_notify_cancel():
                return work
            with self._lock:
                self._running.discard(work)

    def _note(self, work: _Work, _outcome: Any) -> None:
        self._done.put(work)

    def _run(self) -> None:
        while not self._may_end():
            work = self._done.get()
            if work is not None:
                self._finish(work)
            del work  # must not keep the result until the next one

    def _may_end(self) -> bool:
        with self._lock:
            return self._closed and not self._waiting and not self._running

    def _finish(self, work: _Work) -> None:
        with self._lock:
            self._running.discard(work)
        self._send()  # before the callbacks of users, which may take long
        outcome, work.outcome = work.outcome, None  # they refer to one another
        error = outcome.exception()
        if isinstance(error, _InitializerError):
            self._break(error)
            work.future.set_exception(self._broken_error(error))
        elif error is not None:
            work.future.set_exception(_as_raised(error))
        else:
            work.future.set_result(outcome.result())

    def _break(self, error: BaseException) -> None:
        _log.critical("the initializer of an executor raised:", exc_info=error)
        why = getattr(error, "cause", None) or error
        with self._lock:
            self._broken = f"the initializer raised: {why}"
            dropped = [*self._waiting]
            self._waiting.clear()
        for work in dropped:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(self._broken_error(error))

    def _broken_error(self, cause: BaseException) -> BrokenExecutor:
        made = BrokenExecutor(self._broken)
        made.__cause__ = cause
        return made


def _as_raised(error: BaseException) -> BaseException:
    """Return the error of a task as executors of the standard library give it."""
    if isinstance(error, TaskError) and isinstance(error.cause, Exception):
        raised = error.cause
        # A new one: what it was chained to would be chained to itself.
        raised.__cause__ = TaskError(
            error.function_name, error.traceback_text, None, error.where
        )
        return raised
    if isinstance(error, WorkerCrashedError):
        made = BrokenCall(error.task, error.reason, error.log_tail)
        made.__cause__ = error
        return made
    return error


def _results(futures: list[Future[list[_T]]], deadline: float | None) -> Iterator[_T]:
    """Yield the results of chunks; cancel what is left when the reader stops."""
    futures.reverse()
    try:
        while futures:
            left_s = None if deadline is None else deadline - time.monotonic()
            chunk = futures.pop().result(left_s)
            chunk.reverse()
            while chunk:
                yield chunk.pop()  # and keep no reference to it
    finally:
        for future in futures:
            future.cancel()


# --- in the task ---

_initialized: set[str] = set()


def _call(setup: _Setup | None, call: Callable[[], Any]) -> Any:
    if setup is not None and setup.executor_id not in _initialized:
        try:
            setup.initializer(*setup.initargs)
        except Exception as error:
            raise _InitializerError(f"{type(error).__name__}: {error}") from error
        _initialized.add(setup.executor_id)
    return call()


def _call_each(fn: Callable[..., Any], chunk: list[tuple[Any, ...]]) -> list[Any]:
    return [fn(*args) for args in chunk]


# --- the end of the process ---


def _finish_all() -> None:
    """Let calls end before the program does, as the standard library's executors."""
    for pump in list(_alive):
        pump.close()
        if sparkray.is_initialized() and not pump.is_in_task:
            pump.join()


# Not `atexit`: by then futures of refs resolve no more.  What is registered last runs
# first, so `concurrent.futures.thread` has to be there already.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
