"""The node agent: puts its parts together and owns their loop.

    channels ──▶ AgentService ──▶ LeaseDesk ──▶ state.leases
                      │      ├──▶ Fleet ──▶ zygotes, state.workers
                      │      ├──▶ ObjectDesk ──▶ the store
                      │      └──▶ LogTailer, MemoryMonitor
                      └──────────▶ Uplink ──▶ head, other agents

Here: life and death of runtimes, jobs, and what the head says.  One asyncio loop;
nothing else touches the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import sparkray
from sparkray.agent import host
from sparkray.agent.channels import AgentChannel, ChannelServer
from sparkray.agent.fleet import Fleet, FleetEvents
from sparkray.agent.leasing import LeaseDesk, Surroundings
from sparkray.agent.logs import LogTailer, Printed
from sparkray.agent.members import Job, Member
from sparkray.agent.memory import Candidate, MemoryMonitor
from sparkray.agent.objects import ObjectDesk
from sparkray.agent.options import AgentOptions, total_resources
from sparkray.agent.state.events import ResourcesChanged, ViewChanged, WorkerReady
from sparkray.agent.state.nodes import Node
from sparkray.agent.state.workers import PoolKey, Worker
from sparkray.agent.uplink import Uplink, UplinkEvents
from sparkray.config import Settings
from sparkray.exceptions import ClusterError, ProtocolError, SparkrayError
from sparkray.ids import new_job_id
from sparkray.protocol import control
from sparkray.protocol import messages as m
from sparkray.resources import OBJECT_STORE_MEMORY, UNIT
from sparkray.transport.errors import kind_of

if TYPE_CHECKING:
    from sparkray.transport.client import Peer
    from sparkray.transport.server import Servicer

_log = logging.getLogger(__name__)

#: How often idle workers and the like are looked at.
HOUSEKEEPING_S: Final = 1.0
#: How long runtimes may take to list their objects.
DUMP_S: Final = 2.0
#: Log lines for a driver that does not read are dropped beyond this.
MAX_LOG_BACKLOG_BYTES: Final = 4 * 1024 * 1024


class AgentService:
    """One node.  `start`, then `join`; `stop` ends everything.

    Args:
        options: what this node is.
        settings: how it behaves.
        token: the cluster's secret.
    """

    def __init__(self, options: AgentOptions, settings: Settings, token: bytes) -> None:
        self.options, self.settings = options, settings
        self._token = token
        cpus = host.cpu_count()
        self._store_bytes = host.store_limit_bytes(
            settings.object_store_memory, options.segment_dir
        )
        self.total = total_resources(
            options,
            cpus=cpus,
            memory_bytes=host.memory_total_bytes(),
            store_bytes=self._store_bytes,
        )
        self.members: dict[bytes, Member] = {}
        self._by_channel: dict[AgentChannel, Member] = {}
        self._early: set[AgentChannel] = set()
        self._jobs: dict[bytes, Job] = {}
        self._ended_jobs: dict[bytes, None] = {}
        self._view: dict[bytes, control.NodeInfo] = {}
        self._address = ""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._finished: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._dumps: dict[int, asyncio.Future[list[m.ObjectRow]]] = {}
        self._dump_number = 0
        lent = max(1, self.total.get("CPU", 0) // UNIT)
        self.fleet = Fleet(
            options,
            settings,
            token,
            cpus=lent,
            events=FleetEvents(
                gone=self._worker_gone,
                broken=lambda key, reason: self.leases.pool_broken(key, reason),
                tell=self._tell,
                started=self._worker_started,
            ),
        )
        self._prestart = min(lent, cpus)
        self.uplink = Uplink(
            token,
            settings.report_interval_s,
            UplinkEvents(
                register=self._registration,
                registered=self._job_news,
                report=self._report,
                item=self._head_says,
                cast_out=self._finish,
            ),
        )
        own = Node(options.node_id, socket.gethostname(), self.total, dict(self.total))
        self.leases = LeaseDesk(
            options.node_id,
            own,
            self.fleet,
            settings,
            Surroundings(
                self.members, self.uplink.call_peer, self.spawn, self.uplink.changed
            ),
        )
        self.objects = ObjectDesk(
            options,
            settings,
            token,
            limit_bytes=self._store_bytes,
            call_peer=self.uplink.call_peer,
            flight_of=self._flight_of,
            spawn=self.spawn,
            used_changed=self._store_changed,
        )
        self.logs = LogTailer(self._printed)
        self._server = ChannelServer(
            os.path.join(options.session_dir, "agent.sock"), token, self
        )
        self._memory = MemoryMonitor(
            settings.memory_threshold, self._memory_candidates, self._out_of_memory
        )

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the zygote, the store and the socket; the head is not needed yet."""
        os.makedirs(self.options.log_dir, mode=0o700, exist_ok=True)
        self.fleet.warm_up()
        self.objects.start()
        await self._server.start()
        self.spawn(self._memory.run())
        self.spawn(self._keep_house())

    def servicers(self) -> list[Servicer]:
        """Return what this node's gRPC server serves."""
        from sparkray.agent.servicer import AgentServicer

        return [AgentServicer(self)]

    async def join(self, head: Peer, address: str) -> None:
        """Join the cluster.

        Args:
            head: the head's gRPC server.
            address: ``host:port`` where this agent's `servicers` are served.

        Raises:
            ConnectionError: the head does not answer.
            ProtocolError: it refuses this node.
        """
        self._address = address
        await self.uplink.join(head)
        if not self.options.local:
            self.spawn(self._serve_flight())

    async def finished(self) -> str:
        """Wait until the head wants this node to end; return why."""
        return await asyncio.shield(self._finished)

    async def stop(self, reason: str) -> None:
        """End workers, channels, the store and all connections.  Repeatable."""
        if self._stopping:
            return
        self._stopping = True
        _log.info("the agent ends: %s", reason)
        self.logs.flush()
        self.logs.close()
        self.leases.stop()
        self._server.close()
        for job in list(self._jobs.values()):
            if job.driver is not None:
                with contextlib.suppress(SparkrayError, asyncio.TimeoutError):
                    ended = self.uplink.call(
                        "EndJob", control.JobEnded(job.job_id), 1.0
                    )
                    await ended
        for task in list(self._tasks):
            task.cancel()
        await self.fleet.stop()
        for channel in [*self._by_channel, *self._early]:
            channel.close()
        await self.objects.close()
        await self.uplink.stop()
        self._finish(reason)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside everything else; a failure of it is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the agent failed", exc_info=error)

    def _finish(self, reason: str) -> None:
        if not self._finished.done():
            self._finished.set_result(reason)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self.fleet.housekeeping()

    # --- runtimes come and go ---------------------------------------------------------

    def attach(self, channel: AgentChannel, message: m.Attach) -> None:
        """A runtime's first message (see `channels.Members`)."""
        self._early.add(channel)
        self.spawn(self._attach(channel, message))

    async def _attach(self, channel: AgentChannel, message: m.Attach) -> None:
        try:
            job = await self._admit(message)
        except Exception as error:
            if kind_of(error) is None:
                _log.exception("cannot attach process %d", message.pid)
            channel.fail(0, error)
            channel.close()
            self._early.discard(channel)
            return
        if channel not in self._early:  # gone meanwhile
            if message.kind == "driver":
                self._driver_gone(job)
            return
        self._early.discard(channel)
        member = self._enrol(channel, message, job)
        if member is not None and message.kind == "worker":
            self.leases.feed(WorkerReady())

    async def _admit(self, message: m.Attach) -> Job:
        _check_versions(message.versions)
        if message.kind == "driver":
            return await self._new_job(message)
        if message.kind not in ("udf", "worker"):
            raise ProtocolError(f"unknown kind of runtime {message.kind!r}")
        if message.job_id:
            return await self.job(message.job_id)
        if message.config is None:
            raise ProtocolError("a runtime without a job must bring a configuration")
        return await self._new_job(message)

    async def _new_job(self, message: m.Attach) -> Job:
        if message.config is None:
            raise ProtocolError("a driver must say how its job is configured")
        job = Job(new_job_id(), message.config)
        self._jobs[job.job_id] = job
        env = message.config.runtime_env
        self.fleet.start(PoolKey(job.job_id, env), self._prestart)
        self.fleet.preload(env, message.config.preload)
        try:
            await self.uplink.call("AddJob", self._add_job(job, message.pid))
        except BaseException:
            self._end_job(job.job_id)
            raise
        return job

    def _add_job(self, job: Job, pid: int) -> control.AddJob:
        info = control.JobInfo(
            job_id=job.job_id,
            config=job.config,
            driver_node=self.options.node_id,
            driver_pid=pid,
            alive=True,
            start_unix_s=time.time(),
            end_unix_s=0.0,
        )
        return control.AddJob(info)

    def _enrol(
        self, channel: AgentChannel, message: m.Attach, job: Job
    ) -> Member | None:
        options = self.options
        address = m.Address(
            message.worker_id,
            options.node_id,
            message.path,
            message.host or options.host,
            message.port,
        )
        if message.kind == "worker" and (
            job.job_id in self._ended_jobs
            or not self.fleet.attached(message.worker_id, message.pid)
        ):
            channel.fail(0, ClusterError("this worker is not wanted any more"))
            channel.close()
            return None
        member = Member(
            channel, message.kind, message.worker_id, message.pid, job.job_id, address
        )
        self.members[member.worker_id] = self._by_channel[channel] = member
        if message.kind == "driver" or (message.kind == "udf" and not message.job_id):
            job.driver = member
        channel.send(
            m.Attached(
                cluster_id=options.cluster_id,
                node_id=options.node_id,
                job_id=job.job_id,
                address=address,
                head=self.uplink.head_address,
                flight=self.objects.flight,
                session_dir=options.session_dir,
                config=job.config,
                settings=self.settings.shared(),
            )
        )
        return member

    def lost(self, channel: AgentChannel) -> None:
        """The channel of a runtime closed: the runtime is dead."""
        self._early.discard(channel)
        member = self._by_channel.pop(channel, None)
        if member is None or self._stopping:
            return
        del self.members[member.worker_id]
        if member.kind == "worker":
            self.leases.worker_gone(member.worker_id)
            self.fleet.channel_closed(member.worker_id)
        self.leases.member_gone(member)
        self.objects.client_gone(member.worker_id)
        job = self._jobs.get(member.job_id)
        if job is not None and job.driver is member:
            self._driver_gone(job)

    def _driver_gone(self, job: Job) -> None:
        self._end_job(job.job_id)
        self.spawn(self._tell_end(job.job_id))

    async def _tell_end(self, job_id: bytes) -> None:
        for pause_s in (0.2, 1.0, 5.0, 30.0):
            try:
                await self.uplink.call("EndJob", control.JobEnded(job_id))
                return
            except ClusterError as error:
                _log.info("the end of job %s is not told yet: %s", job_id.hex(), error)
                await asyncio.sleep(pause_s)

    def _end_job(self, job_id: bytes) -> None:
        """End all that belongs to a job on this node."""
        self._ended_jobs[job_id] = None
        job = self._jobs.pop(job_id, None)
        self.fleet.end_job(job_id)
        for member in list(self.members.values()):
            if member.job_id != job_id:
                continue
            self.objects.client_gone(member.worker_id)
            if member.kind == "udf" or (job is not None and member is job.driver):
                member.channel.close()

    async def job(self, job_id: bytes) -> Job:
        """Return a job, asking the head for one that is new here.

        Raises:
            ClusterError: there is no such job, or it has ended.
        """
        known = self._jobs.get(job_id)
        if known is not None:
            return known
        try:
            info = await self.uplink.call("GetJob", control.GetJob(job_id))
        except KeyError:
            raise ClusterError(f"there is no job {job_id.hex()}") from None
        if not info.alive or job_id in self._ended_jobs:
            raise ClusterError(f"job {job_id.hex()} has ended")
        return self._jobs.setdefault(job_id, Job(job_id, info.config))

    # --- what runtimes say ------------------------------------------------------------

    def receive(self, channel: AgentChannel, message: Any) -> None:
        """A later message of a runtime (see `channels.Members`)."""
        member = self._by_channel.get(channel)
        if member is None:
            raise ProtocolError(f"{type(message).__name__} before Attached")
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise ProtocolError(f"an agent takes no {type(message).__name__}")
        handler(self, member, message)

    def _request_leases(self, member: Member, message: m.RequestLeases) -> None:
        job = self._jobs.get(member.job_id)
        self.leases.request(
            member, message, "" if job is None else job.config.runtime_env
        )

    def _withdraw(self, member: Member, message: m.WithdrawRequest) -> None:
        self.leases.withdraw(member, message.call)

    def _return_lease(self, member: Member, message: m.ReturnLease) -> None:
        self.leases.give_back(message.lease_id, message.reusable)

    def _blocked(self, member: Member, message: m.Blocked) -> None:
        self.leases.blocked(member.worker_id, True)

    def _unblocked(self, member: Member, message: m.Unblocked) -> None:
        self.leases.blocked(member.worker_id, False)

    def _kill_worker(self, member: Member, message: m.KillWorker) -> None:
        self._answer(member, message.call, self._kill(message))

    async def _kill(self, message: m.KillWorker) -> m.Done:
        if message.node_id == self.options.node_id:
            self.fleet.kill(message.worker_id, "signal", message.reason)
        else:
            request = control.KillPeerWorker(message.worker_id, message.reason)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self.uplink.call_peer(
                    message.node_id, "KillWorker", request, 10.0
                )
        return m.Done(message.call)

    def _ask_death(self, member: Member, message: m.AskDeath) -> None:
        self._answer(member, message.call, self._death(message))

    async def _death(self, message: m.AskDeath) -> m.Death:
        if message.node_id == self.options.node_id:
            record = await self.fleet.death_of(message.worker_id)
            return m.Death(message.call, record.kind, record.reason, record.log_tail)
        request = control.AskPeerDeath(message.worker_id)
        try:
            told = await self.uplink.call_peer(
                message.node_id, "AskDeath", request, 6.0
            )
        except (ConnectionError, TimeoutError) as error:
            reason = f"its node {message.node_id.hex()} does not answer: {error}"
            return m.Death(message.call, "node", reason, "")
        return m.Death(message.call, told.kind, told.reason, told.log_tail)

    def _head_call(self, member: Member, message: m.HeadCall) -> None:
        async def pass_on() -> m.HeadReply:
            body = await self.uplink.pass_on(message.method, message.body)
            return m.HeadReply(message.call, body)

        self._answer(member, message.call, pass_on())

    def _objects_dumped(self, member: Member, message: m.ObjectsDumped) -> None:
        waiting = self._dumps.pop(message.call, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message.rows)

    def _object_message(self, member: Member, message: Any) -> None:
        answer = self.objects.receive(member.worker_id, message)
        if answer is not None:
            self._answer(member, message.call, answer)

    def _answer(
        self, member: Member, call: int, work: Coroutine[Any, Any, Any]
    ) -> None:
        """Send what ``work`` returns or raises as the answer to a call."""

        async def run() -> None:
            try:
                member.channel.send(await work)
            except Exception as error:
                if kind_of(error) is None:
                    _log.exception("a call of process %d failed", member.pid)
                member.channel.fail(call, error)

        self.spawn(run())

    def _tell(self, worker_id: bytes, message: object) -> bool:
        member = self.members.get(worker_id)
        if member is None:
            return False
        member.channel.send(message)
        return True

    # --- workers ----------------------------------------------------------------------

    def _worker_started(self, worker: Worker) -> None:
        job = self._jobs.get(worker.key.job_id)
        shown = job is not None and job.config.log_to_driver
        paths = self.fleet.log_paths(worker.worker_id)
        self.logs.follow(worker.worker_id, worker.key.job_id, worker.pid, paths, shown)

    def _worker_gone(self, worker: Worker) -> None:
        self.logs.ended(worker.worker_id)
        self.leases.worker_gone(worker.worker_id)

    def _memory_candidates(self) -> list[Candidate]:
        return [
            Candidate(worker.worker_id, since, host.rss_bytes(worker.pid))
            for since, worker in self.leases.newest_first()
        ]

    def _out_of_memory(self, worker_id: bytes, reason: str) -> None:
        self.fleet.kill(worker_id, "oom", f"{reason}; host {socket.gethostname()}")

    def _printed(self, printed: Printed) -> None:
        job = self._jobs.get(printed.job_id)
        host_name = socket.gethostname()
        if job is None or job.driver is None:
            batch = control.LogBatch(
                job_id=printed.job_id,
                name=printed.name,
                pid=printed.pid,
                host=host_name,
                lines=printed.lines,
                is_stderr=printed.is_stderr,
            )
            self.uplink.send_logs(batch)
            return
        lines = m.LogLines(
            printed.name, printed.pid, host_name, printed.lines, printed.is_stderr
        )
        _show(job.driver, lines)

    # --- head -------------------------------------------------------------------------

    def node_info(self) -> control.NodeInfo:
        options = self.options
        return control.NodeInfo(
            node_id=options.node_id,
            host=options.host,
            host_name=socket.gethostname(),
            agent=self._address,
            flight=self.objects.flight,
            agent_socket=self._server.path,
            total=self.total,
            available=self._available(),
            labels=dict(options.labels),
            alive=True,
            is_head=options.is_head,
            reason="",
            pid=os.getpid(),
            version=sparkray.__version__,
        )

    def _available(self) -> dict[str, int]:
        available = self.leases.table.available
        return {name: available.get(name, 0) for name in self.total}

    def _registration(self) -> control.RegisterNode:
        version = platform.python_version()
        return control.RegisterNode(self.node_info(), version, sparkray.__version__)

    def _job_news(self) -> list[control.AddJob]:
        return [
            self._add_job(job, job.driver.pid)
            for job in self._jobs.values()
            if job.driver is not None
        ]

    def _report(self) -> control.NodeReport:
        return control.NodeReport(
            node_id=self.options.node_id,
            available=self._available(),
            demand=self.leases.table.demand(),
            workers=len(self.fleet.table.workers),
        )

    def _store_changed(self, change_bytes: int) -> None:
        self.leases.feed(ResourcesChanged(OBJECT_STORE_MEMORY, -change_bytes * UNIT))

    def _head_says(self, item: control.DownItem) -> None:
        if item.view is not None:
            self._see(item.view)
        elif item.gone is not None:
            self._node_gone(item.gone)
        elif item.job_ended is not None:
            self._end_job(item.job_ended.job_id)
        elif item.logs is not None:
            job, logs = self._jobs.get(item.logs.job_id), item.logs
            if job is not None and job.driver is not None:
                lines = m.LogLines(
                    logs.name, logs.pid, logs.host, logs.lines, logs.is_stderr
                )
                _show(job.driver, lines)
        elif item.shutdown is not None:
            self._finish("the head asked this node to end")

    def _see(self, view: control.ClusterView) -> None:
        self.uplink.know(view.nodes)
        others = [
            n for n in view.nodes if n.node_id != self.options.node_id and n.alive
        ]
        alone = not self._view
        self._view = {node.node_id: node for node in others}
        if alone and others and not self.objects.flight:
            self.spawn(self._serve_flight())
        peers = [
            Node(n.node_id, n.host_name, n.total, dict(n.available)) for n in others
        ]
        self.leases.feed(ViewChanged(peers))

    def _node_gone(self, gone: control.NodeGone) -> None:
        if gone.node_id == self.options.node_id:
            self._finish(f"the head declared this node dead: {gone.reason}")
            return
        self._view.pop(gone.node_id, None)
        self.leases.node_gone(gone.node_id)
        self.spawn(self.uplink.forget(gone.node_id))
        for member in self.members.values():
            member.channel.send(m.NodeDied(gone.node_id, gone.reason))

    def _flight_of(self, node_id: bytes) -> str:
        node = self._view.get(node_id)
        return "" if node is None else node.flight

    async def _serve_flight(self) -> None:
        if await self.objects.serve_flight():
            await self.uplink.register_again()

    async def list_objects(self) -> control.ObjectList:
        """Ask all runtimes of this node for the objects that they own."""
        loop = asyncio.get_running_loop()
        asked: dict[asyncio.Future[list[m.ObjectRow]], Member] = {}
        for member in self.members.values():
            self._dump_number += 1
            waiting: asyncio.Future[list[m.ObjectRow]] = loop.create_future()
            self._dumps[self._dump_number] = waiting
            asked[waiting] = member
            member.channel.send(m.DumpObjects(self._dump_number))
        if asked:
            await asyncio.wait(asked, timeout=DUMP_S)
        rows = [row for waiting in asked if waiting.done() for row in waiting.result()]
        missing = [
            f"process {member.pid} on {socket.gethostname()}"
            for waiting, member in asked.items()
            if not waiting.done() and member.worker_id in self.members
        ]
        used = {self.options.node_id.hex(): self.objects.used_bytes}
        return control.ObjectList(rows, used, missing)


def _show(driver: Member, lines: m.LogLines) -> None:
    if driver.channel.backlog_bytes < MAX_LOG_BACKLOG_BYTES:
        driver.channel.send(lines)


def _check_versions(theirs: dict[str, str]) -> None:
    """Raise ProtocolError if a runtime cannot work with this agent."""
    ours = {"python": platform.python_version(), "sparkray": sparkray.__version__}
    if (
        _minor(theirs.get("python", "")) != _minor(ours["python"])
        or theirs.get("sparkray") != ours["sparkray"]
    ):
        raise ProtocolError(
            f"this process runs Python {theirs.get('python')} and sparkray"
            f" {theirs.get('sparkray')}, the node agent Python {ours['python']} and"
            f" sparkray {ours['sparkray']}: use the same versions"
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


_HANDLERS: Final[dict[type, Callable[[AgentService, Member, Any], None]]] = {
    m.RequestLeases: AgentService._request_leases,
    m.WithdrawRequest: AgentService._withdraw,
    m.ReturnLease: AgentService._return_lease,
    m.Blocked: AgentService._blocked,
    m.Unblocked: AgentService._unblocked,
    m.KillWorker: AgentService._kill_worker,
    m.AskDeath: AgentService._ask_death,
    m.HeadCall: AgentService._head_call,
    m.ObjectsDumped: AgentService._objects_dumped,
    m.CreateObject: AgentService._object_message,
    m.SealObject: AgentService._object_message,
    m.AbortObject: AgentService._object_message,
    m.PinObject: AgentService._object_message,
    m.UnpinObjects: AgentService._object_message,
    m.FreeObjects: AgentService._object_message,
}
