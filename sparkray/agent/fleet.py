"""The worker processes of a node: starts them, hears of their ends, keeps the records.

Performs the effects of `state.workers`; knows nothing of who leases a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sparkray.agent.environments import EnvironmentDesk, Prepared
from sparkray.agent.logs import read_tail
from sparkray.agent.options import AgentOptions
from sparkray.agent.processes import ZygoteProcess, describe_exit, environment_of
from sparkray.agent.state import workers as w
from sparkray.agent.state.workers import PoolKey, Worker, WorkerState, WorkerTable
from sparkray.config import Settings
from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.ids import new_worker_id
from sparkray.protocol import zygote
from sparkray.protocol.messages import Exit

_log = logging.getLogger(__name__)

#: How long a worker may go on after its channel closed.
LINGER_S = 1.0
#: How long a worker that is to end may take for what it does at its end.
GRACE_S = 1.0
#: So many starts that fail one after the other break a pool.
MAX_FAILED_STARTS = 3
#: How many ended workers are remembered, for those who ask.
REMEMBERED_DEATHS = 2_000
#: So many lines of standard output are quoted before what is on standard error.
FEW_LINES = 5
#: How long somebody who asks waits for the end of a process.
DEATH_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class DeathRecord:
    """How a worker ended; see `messages.Death`."""

    kind: str
    reason: str
    log_tail: str


@dataclass(frozen=True, slots=True)
class FleetEvents:
    """Whom the fleet tells."""

    gone: Callable[[Worker], None]  #: its process has ended
    broken: Callable[[PoolKey, str], None]  #: this pool's workers do not start
    tell: Callable[
        [bytes, object], bool
    ]  #: send a message to a worker; False: it is gone
    started: Callable[[Worker], None]  #: its process exists, its logs can be read
    spawn: Callable[[Coroutine[Any, Any, None]], None]  #: runs beside everything else


class Fleet:
    """All worker processes of this node."""

    def __init__(
        self,
        options: AgentOptions,
        settings: Settings,
        token: bytes,
        *,
        environments: EnvironmentDesk,
        cpus: int,
        events: FleetEvents,
    ) -> None:
        self._options, self._settings, self._token = options, settings, token
        self._events, self._environments = events, environments
        self.cpus = cpus
        cap = settings.max_workers or min(2048, 64 + 16 * cpus)
        self.table = WorkerTable(cap, new_worker_id)
        self._forks_at_a_time = 2 * max(1, os.cpu_count() or 1)
        self._zygotes: dict[str, ZygoteProcess] = {}
        self._preloads: dict[str, dict[str, None]] = {}  #: modules by environment
        #: Workers whose environment is being set up.
        self._waiting: dict[str, dict[bytes, PoolKey]] = {}
        self._leaving: list[ZygoteProcess] = []  #: closed, not reaped yet
        self._queue: deque[tuple[bytes, PoolKey]] = deque()
        self._forking: set[bytes] = set()
        self._zygote_of: dict[bytes, ZygoteProcess] = {}
        self._failed_starts: dict[PoolKey, int] = {}
        self._deaths: OrderedDict[bytes, DeathRecord] = OrderedDict()
        self._asking: dict[bytes, list[asyncio.Future[DeathRecord]]] = {}
        self._stopping = False

    # --- starting ---------------------------------------------------------------------

    def warm_up(self) -> None:
        """Start the plain environment's zygote."""
        self._zygote("")

    def preload(self, runtime_env: str, modules: list[str]) -> None:
        """Have modules imported before workers are forked."""
        self._preloads.setdefault(runtime_env, {}).update(dict.fromkeys(modules))
        process = self._zygotes.get(runtime_env)
        if process is not None and modules:
            process.send(zygote.Preload(modules))

    def start(self, key: PoolKey, count: int) -> None:
        """Start ``count`` workers of a pool, some at a time."""
        for _ in range(min(count, self.table.room)):
            self._apply(self.table.handle(w.StartWanted(key), _now()))

    def log_paths(self, worker_id: bytes, pid: object) -> tuple[str, str]:
        """Return the files of what a worker prints."""
        name = f"worker-{pid}-{worker_id.hex()}"
        stem = os.path.join(self._options.log_dir, name)
        return f"{stem}.out", f"{stem}.err"

    def _pump(self) -> None:
        while self._queue and len(self._forking) < self._forks_at_a_time:
            worker_id, key = self._queue.popleft()
            worker = self.table.workers.get(worker_id)
            if worker is None or worker.state is not WorkerState.STARTING:
                continue
            try:
                process = self._zygote(key.runtime_env)
            except (OSError, RuntimeEnvSetupError) as error:
                self._gone(worker_id, "unknown", f"cannot start a zygote: {error}")
                continue
            self._forking.add(worker_id)
            self._zygote_of[worker_id] = process
            stdout, stderr = self.log_paths(worker_id, zygote.PID)
            start = self._start_of(worker_id, key)
            process.send(zygote.ForkWorker(start, stdout, stderr))

    def _start_of(self, worker_id: bytes, key: PoolKey) -> zygote.WorkerStart:
        options, settings = self._options, self._settings
        prepared = self._environments.ready(key.runtime_env) or Prepared()
        return zygote.WorkerStart(
            agent_socket=os.path.join(options.session_dir, "agent.sock"),
            token=self._token,
            worker_id=worker_id,
            job_id=key.job_id,
            session_dir=options.session_dir,
            host=options.host,
            port_min=settings.worker_port_min,
            port_max=settings.worker_port_max,
            runtime_env=key.runtime_env,
            import_path=list(prepared.import_path),
            working_dir=prepared.working_dir,
            setup_hook=prepared.setup_hook,
        )

    def _zygote(self, runtime_env: str) -> ZygoteProcess:
        process = self._zygotes.get(runtime_env)
        if process is None:
            options = self._options
            prepared = self._environments.ready(runtime_env) or Prepared()
            environment = environment_of(
                runtime_env, os.environ, options.token_file, prepared.venv
            )
            number = len(self._zygotes)
            process = ZygoteProcess(
                prepared.python,
                environment,
                os.path.join(options.log_dir, f"zygote-{os.getpid()}-{number}.log"),
                [options.segment_dir, options.session_dir],
                self._heard,
                functools.partial(self._zygote_gone, runtime_env),
            )
            self._zygotes[runtime_env] = process
            if modules := self._preloads.get(runtime_env):
                process.send(zygote.Preload(list(modules)))
        return process

    # --- environments -----------------------------------------------------------------

    def _start_process(self, worker_id: bytes, key: PoolKey) -> None:
        """Queue a worker for its zygote, once its environment is set up."""
        waiting = self._waiting.get(key.runtime_env)
        if waiting is not None:
            waiting[worker_id] = key
            return
        try:
            prepared = self._environments.ready(key.runtime_env)
        except RuntimeEnvSetupError as error:
            self._gone(worker_id, "unknown", str(error))
            return
        if prepared is None:
            self._waiting[key.runtime_env] = {worker_id: key}
            self._events.spawn(self._set_up(key.runtime_env))
            return
        self._queue.append((worker_id, key))
        self._pump()

    async def _set_up(self, runtime_env: str) -> None:
        reason = ""
        try:
            await self._environments.prepare(runtime_env)
        except RuntimeEnvSetupError as error:
            reason = str(error)
        except Exception as error:  # the workers must not wait for ever
            _log.exception("setting up a runtime environment failed")
            reason = f"cannot set up the runtime environment: {error!r}"
        waiting = self._waiting.pop(runtime_env)
        if reason:
            self._not_set_up(waiting, reason)
            return
        for worker_id, key in waiting.items():
            worker = self.table.workers.get(worker_id)
            if worker is not None:
                worker.since = _now()  # the time to start begins here
                self._queue.append((worker_id, key))
        self._pump()

    def _not_set_up(self, waiting: dict[bytes, PoolKey], reason: str) -> None:
        """Fail who waits for these workers first: nobody shall ask for others."""
        _log.warning("%s", reason)
        for key in dict.fromkeys(waiting.values()):
            self._events.broken(key, reason)
        for worker_id in waiting:
            self._gone(worker_id, "unknown", reason, may_try_again=False)

    # --- what happens to them ---------------------------------------------------------

    def attached(self, worker_id: bytes, pid: int) -> bool:
        """A worker's channel is there.  Return False if it is none of ours."""
        worker = self.table.workers.get(worker_id)
        if worker is None or worker.state is not WorkerState.STARTING:
            return False
        self._apply(self.table.handle(w.Attached(worker_id, pid), _now()))
        self._failed_starts.pop(worker.key, None)
        self._forking.discard(worker_id)
        self._pump()
        return True

    def channel_closed(self, worker_id: bytes) -> None:
        """It gets no more work; if its process goes on for long, it is killed."""
        if worker_id in self.table.workers:
            self.retire(worker_id)
            loop = asyncio.get_running_loop()
            reason = "its connection to the agent closed"
            loop.call_later(LINGER_S, self.kill, worker_id, "unknown", reason)

    def spent(self, worker_id: bytes) -> None:
        """It runs no further task: it ends with the lease that it has."""
        self._apply(self.table.handle(w.Spent(worker_id), _now()))

    def is_spent(self, worker_id: bytes) -> bool:
        worker = self.table.workers.get(worker_id)
        return worker is not None and worker.spent

    def retire(self, worker_id: bytes) -> None:
        self._apply(self.table.handle(w.Retired(worker_id), _now()))

    def kill(self, worker_id: bytes, kind: str, reason: str) -> None:
        """End a worker now.  ``kind`` as in `messages.Death`, for the record."""
        self._apply(self.table.handle(w.Killed(worker_id, kind, reason), _now()))

    def end(self, worker_id: bytes, kind: str, reason: str) -> None:
        """End a worker, which may first run what it was told to run at its end."""
        worker = self.table.workers.get(worker_id)
        if worker is not None and self._events.tell(worker_id, Exit(True)):
            worker.kill_kind, worker.kill_reason = kind, reason
            loop = asyncio.get_running_loop()
            loop.call_later(GRACE_S, self.kill, worker_id, kind, reason)
        else:
            self.kill(worker_id, kind, reason)

    def granted(self, worker_id: bytes, now: float) -> None:
        self._apply(self.table.handle(w.Granted(worker_id), now))

    def returned(self, worker_id: bytes, reusable: bool, now: float) -> None:
        self._apply(self.table.handle(w.Returned(worker_id, reusable), now))

    def blocked(self, worker_id: bytes, blocked: bool) -> None:
        worker = self.table.workers.get(worker_id)
        if worker is not None:
            worker.blocked = blocked

    def end_job(self, job_id: bytes) -> None:
        """End all workers of a job."""
        for worker_id in self.table.of_job(job_id):
            self.end(worker_id, "exit", "its job ended")

    def housekeeping(self) -> None:
        """End workers that were idle too long or never came up, and spare zygotes."""
        now = _now()
        idle_s = self._settings.worker_idle_s
        for worker_id in self.table.idle_too_long(self.cpus, idle_s, now):
            self.retire(worker_id)
        limit_s = self._settings.worker_start_timeout_s
        waiting = {id_ for ids in self._waiting.values() for id_ in ids}
        for worker in list(self.table.workers.values()):
            if worker.worker_id in waiting:
                continue
            if worker.state is WorkerState.STARTING and now - worker.since > limit_s:
                reason = f"it did not start within {limit_s:g} s"
                self.kill(worker.worker_id, "unknown", reason)
        needed = {
            "",
            *(worker.key.runtime_env for worker in self.table.workers.values()),
        }
        for runtime_env in [env for env in self._zygotes if env not in needed]:
            process = self._zygotes.pop(runtime_env)
            process.close()
            self._leaving.append(process)
        self._leaving = [p for p in self._leaving if not p.has_ended()]

    def _apply(self, effects: list[w.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, w.Start):
                self._start_process(effect.worker_id, effect.key)
            elif isinstance(effect, w.AskToEnd):
                self._events.tell(effect.worker_id, Exit(False))
            else:
                self._kill_process(effect.worker_id)

    def _kill_process(self, worker_id: bytes) -> None:
        worker = self.table.workers[worker_id]
        if worker.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
        elif worker_id not in self._zygote_of:  # never asked for
            self._gone(worker_id, "unknown", worker.kill_reason)

    def _heard(self, message: object) -> None:
        if isinstance(message, zygote.Forked):
            worker = self.table.workers.get(message.worker_id)
            if worker is not None:
                worker.pid = message.pid
                self._events.started(worker)
                if worker.state is WorkerState.ENDING:
                    self._kill_process(worker.worker_id)
        elif isinstance(message, zygote.Exited):
            kind, reason = describe_exit(message.code, message.pid, _host_name())
            self._gone(message.worker_id, kind, reason)
        elif isinstance(message, zygote.ForkFailed):
            self._gone(message.worker_id, "unknown", message.reason)

    def _gone(
        self, worker_id: bytes, kind: str, reason: str, *, may_try_again: bool = True
    ) -> None:
        worker = self.table.workers.get(worker_id)
        if worker is None:
            return
        before = worker.state
        self.table.handle(w.Gone(worker_id), _now())
        self._forking.discard(worker_id)
        self._zygote_of.pop(worker_id, None)
        self._remember(worker, kind, reason)
        self._events.gone(worker)
        if before is WorkerState.STARTING and may_try_again and not self._stopping:
            self._start_failed(worker)
        self._pump()

    def _start_failed(self, worker: Worker) -> None:
        failed = self._failed_starts.get(worker.key, 0) + 1
        self._failed_starts[worker.key] = failed
        record = self._deaths[worker.worker_id]
        _log.warning("a worker did not start: %s\n%s", record.reason, record.log_tail)
        if failed >= MAX_FAILED_STARTS:
            del self._failed_starts[worker.key]
            text = f"workers do not start: {record.reason}"
            tail = (
                f"\nthe last one's output:\n{record.log_tail}"
                if record.log_tail
                else ""
            )
            self._events.broken(worker.key, text + tail)

    def _zygote_gone(self, runtime_env: str, process: ZygoteProcess) -> None:
        if self._zygotes.get(runtime_env) is process:
            del self._zygotes[runtime_env]
        if self._stopping:
            return
        _log.error("zygote %d ended; its workers end with it", process.pid)
        for worker_id, owner in list(self._zygote_of.items()):
            if owner is process:
                reason = f"its parent process ended\n{process.log_tail()}".strip()
                self._gone(worker_id, "signal", reason)

    # --- deaths -----------------------------------------------------------------------

    def _remember(self, worker: Worker, kind: str, reason: str) -> None:
        if worker.kill_reason:
            reason = f"{worker.kill_reason} ({reason})"
            kind = worker.kill_kind or kind
        path, tail = self._last_words(worker)
        if tail and not worker.kill_reason:
            reason += f"; its output is in {path}"
        record = DeathRecord(kind, reason, tail)
        self._deaths[worker.worker_id] = record
        if len(self._deaths) > REMEMBERED_DEATHS:
            self._deaths.popitem(last=False)
        for waiting in self._asking.pop(worker.worker_id, ()):
            if not waiting.done():
                waiting.set_result(record)

    def _last_words(self, worker: Worker) -> tuple[str, str]:
        """Return a file of what a worker printed, and the ends of both."""
        stdout, stderr = self.log_paths(worker.worker_id, worker.pid)
        printed, said = read_tail(stdout), read_tail(stderr)
        if not said:
            return stdout, printed
        few = printed.splitlines()[-FEW_LINES:]
        return stderr, "\n".join([*few, said])

    async def death_of(self, worker_id: bytes) -> DeathRecord:
        """Return how a worker ended; waits for that, at most `DEATH_WAIT_S`."""
        record = self._deaths.get(worker_id)
        if record is not None:
            return record
        if worker_id not in self.table.workers:
            return DeathRecord("unknown", "this node does not know the worker", "")
        waiting = asyncio.get_running_loop().create_future()
        self._asking.setdefault(worker_id, []).append(waiting)
        try:
            return await asyncio.wait_for(waiting, DEATH_WAIT_S)
        except asyncio.TimeoutError:
            return DeathRecord("unknown", "its process still runs", "")

    async def stop(self) -> None:
        """End all workers and zygotes."""
        self._stopping = True
        workers, tell = list(self.table.workers), self._events.tell
        leaving = [worker_id for worker_id in workers if tell(worker_id, Exit(True))]
        ends = asyncio.gather(*(self.death_of(worker_id) for worker_id in leaving))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ends, GRACE_S)
        for worker in list(self.table.workers.values()):
            if worker.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)
        zygotes = [*self._zygotes.values(), *self._leaving]
        self._zygotes.clear()
        for process in zygotes:
            process.close()
        await asyncio.gather(*(process.wait(3.0) for process in zygotes))


def _now() -> float:
    return time.monotonic()


@functools.cache
def _host_name() -> str:
    return socket.gethostname()
