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
import logging
import os
import platform
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import sparkray
from sparkray.agent import host
from sparkray.agent.actors import ActorDesk
from sparkray.agent.calls import RuntimeCalls
from sparkray.agent.channels import AgentChannel, ChannelServer
from sparkray.agent.draining import DrainDesk
from sparkray.agent.environments import EnvironmentDesk
from sparkray.agent.fleet import Fleet, FleetEvents
from sparkray.agent.jobs import JobDesk
from sparkray.agent.leasing import LeaseDesk, Surroundings
from sparkray.agent.logs import LogTailer
from sparkray.agent.members import Job, Member
from sparkray.agent.memory import Candidate, MemoryMonitor
from sparkray.agent.modules import ModuleDesk
from sparkray.agent.objects import ObjectDesk
from sparkray.agent.options import AgentOptions, labels_of, total_resources
from sparkray.agent.state.events import ViewChanged, WorkerReady
from sparkray.agent.state.nodes import Node
from sparkray.agent.state.workers import Worker
from sparkray.agent.uplink import Uplink, UplinkEvents
from sparkray.config import Settings
from sparkray.exceptions import ClusterError, ProtocolError
from sparkray.protocol import control
from sparkray.protocol import messages as m
from sparkray.protocol.stacks import StackList
from sparkray.resources import OBJECT_STORE_MEMORY, UNIT
from sparkray.transport.errors import kind_of

if TYPE_CHECKING:
    from sparkray.transport.client import Peer
    from sparkray.transport.server import Servicer

_log = logging.getLogger(__name__)

#: How often idle workers and the like are looked at.
HOUSEKEEPING_S: Final = 1.0
#: Loading Arrow takes the interpreter for a while: not while the first workers start,
#: unless there is an object already.
FLIGHT_DELAY_S: Final = 1.0
#: So long after the head came back it has ended by itself what it wants to end.
STRAY_S: Final = 15.0
#: How long the head may take to hear that jobs end with this node.
END_JOB_S: Final = 1.0


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
        self.objects = ObjectDesk(
            options,
            settings,
            token,
            call_peer=lambda *call: self.uplink.call_peer(*call),
            flight_of=self._flight_of,
            peers=lambda: list(self._view),
            spawn=self.spawn,
            changed=lambda: self.uplink.changed(),
            sealed=self._sealed,
        )
        self.total = total_resources(
            options,
            cpus=cpus,
            memory_bytes=host.memory_total_bytes(),
            store_bytes=self.objects.limit_bytes,
        )
        self.members: dict[bytes, Member] = {}
        self._by_channel: dict[AgentChannel, Member] = {}
        self._early: set[AgentChannel] = set()
        self._view: dict[bytes, control.NodeInfo] = {}
        self._dead: set[bytes] = set()  #: nodes that will never be back
        self._address = ""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._finished: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self.cast_out = False  #: why it finished: the head wants another node instead
        lent = max(1, self.total.get("CPU", 0) // UNIT)
        environments = EnvironmentDesk(
            os.path.join(options.session_dir, "environments"),
            lambda *call: self.uplink.call(*call),
        )
        self.fleet = Fleet(
            options,
            settings,
            token,
            environments=environments,
            cpus=lent,
            events=FleetEvents(
                gone=self._worker_gone,
                broken=lambda key, reason: self.leases.pool_broken(key, reason),
                tell=self._tell,
                started=self._worker_started,
                spawn=self.spawn,
            ),
        )
        self.uplink = Uplink(
            token,
            settings.report_interval_s,
            UplinkEvents(
                register=self._registration,
                registered=lambda: self.jobs.news(),
                rejoined=lambda: self.spawn(self._end_strays()),
                report=self._report,
                item=self._head_says,
                cast_out=self._cast_out,
            ),
        )
        self.leases = LeaseDesk(
            options,
            self.total,
            self.fleet,
            settings,
            Surroundings(
                self.members,
                self.uplink.call_peer,
                self.spawn,
                self.uplink.changed,
                lambda *line: self.jobs.tell_driver(*line),
            ),
        )
        self.jobs = JobDesk(
            options.node_id,
            self.uplink,
            self.fleet,
            prestart=min(lent, cpus),
            spawn=self.spawn,
        )
        self.modules = ModuleDesk(self.jobs, environments, self.uplink)
        self.actors = ActorDesk(
            self.members,
            self.fleet,
            self.uplink,
            self.spawn,
            self.leases.gpu_ids,
            worker_of=self.leases.worker_of,
            give_back=lambda lease_id: self.leases.give_back(lease_id, True),
        )
        self.logs = LogTailer(self.jobs.printed)
        self.calls = RuntimeCalls(
            options.node_id,
            jobs=self.jobs,
            leases=self.leases,
            fleet=self.fleet,
            objects=self.objects,
            actors=self.actors,
            modules=self.modules,
            uplink=self.uplink,
            flush_logs=self.logs.flush,
            spawn=self.spawn,
        )
        self.draining = DrainDesk(
            self.members, self.leases, self.objects, self.list_objects, self._finish
        )
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
        await self.uplink.leave()
        if not self.options.is_head:  # else the whole cluster ends
            await self.jobs.end_own(END_JOB_S)
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

    def _cast_out(self, reason: str) -> None:
        """The head does not know this node, any more or at all; it lives and may join
        again, as another."""
        self.cast_out = not self._finished.done() and not self.draining.leaving
        self._finish(reason)

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
            if self.draining.leaving:
                raise ClusterError("this node is leaving: nobody needed it")
            job = await self.jobs.admit(message)
        except Exception as error:
            if kind_of(error) is None:
                _log.exception("cannot attach process %d", message.pid)
            channel.fail(0, error)
            channel.close()
            self._early.discard(channel)
            return
        if channel not in self._early:  # gone meanwhile
            if message.kind == "driver":
                self.jobs.driver_gone(job.job_id)
            return
        self._early.discard(channel)
        member = self._enrol(channel, message, job)
        if member is not None and message.kind == "worker":
            self.leases.feed(WorkerReady())

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
            self.jobs.has_ended(job.job_id)
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
        member.remove_socket(self.options.session_dir)
        if member.kind == "worker":
            self.fleet.channel_closed(member.worker_id)  # first: it is lent no more
            self.leases.worker_gone(member.worker_id)
        self.actors.member_gone(member)
        driver = self.jobs.is_driver(member)
        self.leases.member_gone(member)
        ended = self.jobs.has_ended(member.job_id)  # then everybody hears of that
        self.objects.client_gone(member.worker_id, [] if ended else list(self._view))
        if driver:
            self._end_job(member.job_id)
            self.jobs.driver_gone(member.job_id)

    def _end_job(self, job_id: bytes) -> None:
        """End all that belongs to a job on this node."""
        job = self.jobs.end_here(job_id)
        for member in list(self.members.values()):
            if member.job_id != job_id:
                continue
            self.objects.client_gone(member.worker_id, [])
            if member.kind == "udf" or (job is not None and member is job.driver):
                member.channel.close()
        self.objects.free_owners([job_id, *self.leases.guests_gone(job_id=job_id)])

    def receive(self, channel: AgentChannel, message: Any) -> None:
        """A later message of a runtime (see `channels.Members`)."""
        member = self._by_channel.get(channel)
        if member is None:
            raise ProtocolError(f"{type(message).__name__} before Attached")
        self.calls.receive(member, message)

    def _tell(self, worker_id: bytes, message: object) -> bool:
        member = self.members.get(worker_id)
        if member is None:
            return False
        member.channel.send(message)
        return True

    # --- workers ----------------------------------------------------------------------

    def _worker_started(self, worker: Worker) -> None:
        job_id = worker.key.job_id
        paths = self.fleet.log_paths(worker.worker_id, worker.pid)
        shown = self.jobs.wants_logs(job_id)
        self.logs.follow(worker.worker_id, job_id, worker.pid, paths, shown)

    def _worker_gone(self, worker: Worker) -> None:
        self.logs.ended(worker.worker_id)
        self.actors.worker_gone(worker.worker_id)
        self.leases.worker_gone(worker.worker_id)

    def _memory_candidates(self) -> list[Candidate]:
        return [
            Candidate(
                worker.worker_id,
                held.since,
                host.rss_bytes(worker.pid),
                held.holder,
                held.shape.retriable,
            )
            for held, worker in self.leases.leased()
        ]

    def _out_of_memory(self, worker_id: bytes, reason: str) -> None:
        self.fleet.kill(worker_id, "oom", f"{reason}; host {socket.gethostname()}")

    @property
    def warnings(self) -> list[str]:
        """What whoever uses this node should know, once."""
        own = [self.objects.warning] if self.objects.warning else []
        return own + self.uplink.warnings

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
            labels=labels_of(options),
            alive=True,
            is_head=options.is_head,
            reason="",
            pid=os.getpid(),
            version=sparkray.__version__,
        )

    def _available(self) -> dict[str, int]:
        if self.leases.closed:
            return dict.fromkeys(self.total, 0)
        free = self.leases.table.available
        available = {name: free.get(name, 0) for name in self.total}
        room = (self.objects.limit_bytes - self.objects.used_bytes) * UNIT
        lent = available.get(OBJECT_STORE_MEMORY, 0)
        return {**available, OBJECT_STORE_MEMORY: max(0, min(lent, room))}

    def _registration(self) -> control.RegisterNode:
        versions = platform.python_version(), sparkray.__version__
        return control.RegisterNode(
            self.node_info(), *versions, self.options.cluster_id
        )

    def _report(self) -> control.NodeReport:
        return control.NodeReport(
            node_id=self.options.node_id,
            available=self._available(),
            demand=self.leases.table.demand(),
            workers=len(self.fleet.table.workers),
            lent=self.leases.table.reclaimable(),
            needed_by=self.draining.needed_by(),
        )

    def _head_says(self, item: control.DownItem) -> None:
        if item.view is not None:
            self._see(item.view)
        elif item.gone is not None:
            self._node_gone(item.gone)
        elif item.job_ended is not None:
            if not self.jobs.has_ended(item.job_ended.job_id):
                self._end_job(item.job_ended.job_id)
        elif item.logs is not None:
            self.jobs.show(item.logs)
        elif item.actors is not None:
            self.actors.learn(item.actors)
        elif item.groups is not None:
            self.leases.learn_groups(item.groups)
        elif item.shutdown is not None:
            self._finish("the head asked this node to end")

    def _see(self, view: control.ClusterView) -> None:
        self.uplink.know(view.nodes)
        others = [
            n for n in view.nodes if n.node_id != self.options.node_id and n.alive
        ]
        if others and not self._view:
            self.spawn(self._serve_flight(FLIGHT_DELAY_S))
        self._view = {node.node_id: node for node in others}
        peers = [
            Node(n.node_id, n.host_name, n.total, dict(n.available), n.labels)
            for n in others
        ]
        self.leases.feed(ViewChanged(peers))

    def _node_gone(self, gone: control.NodeGone) -> None:
        if gone.node_id == self.options.node_id:
            self._cast_out(f"the head declared this node dead: {gone.reason}")
            return
        if gone.node_id in self._dead:
            return
        self._view.pop(gone.node_id, None)
        self._dead.add(gone.node_id)
        self.leases.node_gone(gone.node_id)
        self.objects.free_owners(self.leases.guests_gone(node_id=gone.node_id))
        self.spawn(self.uplink.forget(gone.node_id))
        for member in self.members.values():
            member.channel.send(m.NodeDied(gone.node_id, gone.reason))

    async def _end_strays(self) -> None:
        """A head that died may not have ended all that it wanted to end here."""
        await asyncio.sleep(STRAY_S)
        for worker_id in self.actors.strays():
            self.fleet.kill(worker_id, "signal", "its actor has ended")
        self.leases.return_strays()

    def _flight_of(self, node_id: bytes) -> str | None:
        if node_id in self._dead:
            return None
        node = self._view.get(node_id)
        return "" if node is None else node.flight

    def _sealed(self) -> None:
        """An object is complete: if there are other nodes, they may want it."""
        if self._view and not self.objects.flight:
            self.spawn(self._serve_flight(0.0))

    async def _serve_flight(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if await self.objects.serve_flight():
            await self.uplink.register_again()

    async def list_objects(self) -> control.ObjectList:
        return await self.calls.list_objects(list(self.members.values()))

    async def list_stacks(self) -> StackList:
        return await self.calls.list_stacks(list(self.members.values()))
