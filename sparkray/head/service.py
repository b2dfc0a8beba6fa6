"""The head: owns the tables of the cluster and does what they ask for.

One asyncio loop; nothing else touches its state.  Each agent keeps one stream open:
its reports and log lines come up, the view of the cluster and events go down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkray.config import Settings
from sparkray.exceptions import ProtocolError
from sparkray.head.actors import ActorDesk
from sparkray.head.draining import DrainDesk
from sparkray.head.outbox import Outbox
from sparkray.head.peers import AgentPeers
from sparkray.head.placement import PlacementDesk
from sparkray.head.state import nodes as node_state
from sparkray.head.state import packages, resuming, saved
from sparkray.head.state.nodes import NodeState
from sparkray.head.state.saved import Tables
from sparkray.head.storage import Storage, load
from sparkray.head.views import Views
from sparkray.ids import new_job_id
from sparkray.protocol import codec, control
from sparkray.protocol.actors import DEAD, ActorRow, CreateActor
from sparkray.protocol.control import DownItem, UpItem
from sparkray.protocol.versions import Versions, difference
from sparkray.transport.tls import TLSFiles

_log = logging.getLogger(__name__)

#: A node whose stream broke has this long to come back.
RECONNECT_S: Final = 2.0
#: So many reports of a node must stay away until it counts as silent.
REPORTS: Final = 5
#: While it is away, we try so often whether its process still listens.
PROBE_S: Final = 0.1
#: How long the nodes of a cluster that ends may take to leave.
END_NODES_S: Final = 5.0
#: How long an agent may take to say on its stream who it is.
FIRST_REPORT_S: Final = 10.0


#: Tells a node that the whole cluster ends.
_END: Final = DownItem(shutdown=control.Shutdown(b"", True))


#: Nodes without a stream, which may have ended.
_ABSENT: Final = (NodeState.AWAY, NodeState.EXPECTED)
#: Nodes whose stream is to come.
_TO_COME: Final = (NodeState.JOINING, NodeState.EXPECTED)


class _Link:
    """One open stream to an agent."""

    def __init__(self, node_id: bytes, number: int) -> None:
        self.node_id = node_id
        self.number = number
        self.outbox = Outbox()


class HeadService:
    """What the head knows and does.

    Args:
        cluster_id: of the cluster that this head makes.
        settings: ``node_timeout_s`` is used.
        token: for calls to agents.
        version: of sparkray; agents must have the same.
        tls: for calls to agents.
        state_file: where its state is and is kept; None for a head that dies with all
            that it knows of.

    Raises:
        OSError, sqlite3.Error: there can be no such file.
    """

    def __init__(
        self,
        cluster_id: bytes,
        settings: Settings,
        token: bytes,
        version: str,
        tls: TLSFiles | None = None,
        state_file: Path | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self._storage, self._tables = _opened(state_file, cluster_id, settings)
        self.jobs, self.kv = self._tables.jobs, self._tables.kv
        self.nodes = self._tables.nodes
        apart = state_file is not None
        self.peers = AgentPeers(self.nodes, token, tls, is_process=apart)
        self.actors = ActorDesk(
            self._tables.actors,
            save=self.save,
            alive=self.nodes.alive,
            call_agent=self.peers.call,
            tell=self._actors_changed,
            tell_driver=self._route,
            spawn=self._spawn,
            infeasible_timeout_s=settings.infeasible_timeout_s,
            group=lambda group_id: self.groups.table.groups.get(group_id),
        )
        self.groups = PlacementDesk(
            self._tables.groups,
            save=self.save,
            alive=self.nodes.alive,
            call_agent=self.peers.call,
            tell=lambda rows: self._tell_all(DownItem(groups=rows)),
            tell_driver=self._route,
            spawn=self._spawn,
            end_actors=self._end_actors_of_group,
        )
        self.draining = DrainDesk(
            info=self.nodes.get,
            call_agent=self.peers.call,
            has_actors=self.actors.table.need,
            leave=self._let_go,
            keep=self._keep,
        )
        self._tick_s = min(0.25, settings.node_timeout_s / 4)
        self._report_interval_s = settings.node_timeout_s / REPORTS
        self._versions = Versions(platform.python_version(), version)
        self._address = ""
        self._started_s = time.monotonic()
        self._links: dict[bytes, _Link] = {}
        #: Asked to end while no stream of theirs was open.
        self._to_end: dict[bytes, control.Shutdown] = {}
        self._links_changed = asyncio.Event()
        self._ending = False
        self._stream_number = 0
        self._views = Views(self.nodes, self._outboxes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self, address: str) -> None:
        """Begin to watch the nodes.

        Args:
            address: ``host:port`` where this head is served.
        """
        self._address = address
        self._resume()
        self._spawn(self._tick_for_ever())

    def save(self) -> None:
        """Write what has changed.  Before anybody is told of it: a head that dies and
        comes back may know more than others, never less."""
        if self._storage is None:
            saved.forget_changes(self._tables)
        elif rows := saved.changes(self._tables):
            self._storage.write(rows)

    def _resume(self) -> None:
        """Go on where an earlier head stopped, if there was one."""
        for node_id, reason in resuming.lost_nodes(self._tables):
            self._end_all_of(node_id, reason)
        for job_id in resuming.unfinished_jobs(self._tables):
            self.end_job(job_id)
        for job_id in resuming.ended_jobs(self._tables):
            self._end_all_of_job(job_id)
        alive = [node.node_id for node in self.nodes.alive()]
        self.groups.perform(self.groups.table.resume(alive))
        self.actors.perform(self.actors.table.resume())
        self.groups.wake()
        for node_id in alive:
            self._spawn(self._probe(node_id))
        if alive:
            _log.info("nodes of before that are expected back: %d", len(alive))

    async def finished(self) -> str:
        """Wait until somebody asks for the end of the cluster; return why."""
        return await asyncio.shield(self._finished)

    async def stop(self, reason: str) -> None:
        """End all nodes but the head's own, then this service.  Repeatable."""
        self._ending = True
        others = [link for link in self._links.values() if not self._is_own(link)]
        _log.info("the cluster ends (%s); nodes to end: %d", reason, len(others))
        _send([link.outbox for link in others], _END)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._others_left(), END_NODES_S)
        for task in list(self._tasks):
            task.cancel()
        for outbox in self._outboxes():
            outbox.close()
        self._views.stop()
        await self.peers.close()
        if self._storage is not None:
            self._storage.close()

    # --- calls -----------------------------------------------------------------------

    def register_node(self, request: control.RegisterNode) -> control.NodeRegistered:
        """Take a node in.

        Raises:
            ProtocolError: its versions differ from ours, it was declared dead, or it is
                of another cluster.
        """
        if request.cluster_id not in (b"", self.cluster_id):
            raise ProtocolError(
                f"node {_short(request.node.node_id)} belongs to cluster"
                f" {request.cluster_id.hex()}, which ended: the cluster at"
                f" {self._address} is {self.cluster_id.hex()}"
            )
        warnings = self._check_versions(request)
        info = msgspec.structs.replace(request.node, alive=True, reason="")
        try:
            self._apply(self.nodes.register(info, time.monotonic()))
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        self.save()
        _log.info("node %s at %s joined", _short(info.node_id), info.agent)
        return control.NodeRegistered(
            self.cluster_id, warnings, self._report_interval_s
        )

    def end_job(self, job_id: bytes) -> None:
        if self.jobs.end(job_id, time.time()):
            packages.drop_unused(self.kv, self.jobs.is_alive)
            self.save()
            self._tell_all(DownItem(job_ended=control.JobEnded(job_id)))
            self._end_all_of_job(job_id)

    def _end_all_of_job(self, job_id: bytes) -> None:
        self.actors.perform(self.actors.table.job_ended(job_id))
        self.groups.perform(self.groups.table.job_ended(job_id))

    def _actors_changed(self, rows: list[ActorRow]) -> None:
        self._tell_all(DownItem(actors=rows))
        for row in rows:
            if row.detached and row.state == DEAD:  # so is the job that it had
                asyncio.get_running_loop().call_soon(self.end_job, row.job_id)

    def _end_actors_of_group(self, group_id: bytes, reason: str) -> None:
        self.actors.perform(self.actors.table.group_removed(group_id, reason))

    def create_actor(self, request: CreateActor) -> ActorRow:
        """Take an actor in; a detached one gets a job of its own, which outlives that
        of the driver.

        Raises:
            ValueError: the name is taken.
        """
        if not request.detached or request.actor_id in self.actors.table.actors:
            return self.actors.create(request)
        own = msgspec.structs.replace(
            self.jobs.get(request.job_id),
            job_id=new_job_id(),
            driver_node=b"",
            start_unix_s=time.time(),
        )
        spec = msgspec.structs.replace(request.spec, job_id=own.job_id)

        def begin_job() -> None:
            self.jobs.add(own)
            envs = request.spec.runtime_env, own.config.runtime_env
            packages.note_use(self.kv, own.job_id, *envs)

        return self.actors.create(
            msgspec.structs.replace(request, job_id=own.job_id, spec=spec), begin_job
        )

    def status(self) -> control.StatusReport:
        return control.StatusReport(
            cluster_id=self.cluster_id,
            version=self._versions.sparkray,
            head=self._address,
            uptime_s=time.monotonic() - self._started_s,
            nodes=self.nodes.all(),
            jobs=self.jobs.all(),
            demand=self.nodes.demand() + self.groups.table.demand(),
            idle_s=self.nodes.idle_s(time.monotonic()),
            apart=self.groups.table.apart(),
        )

    def shutdown(self, request: control.Shutdown) -> None:
        """End one node, or the whole cluster; returns before anything ends.

        Raises:
            KeyError: there is no such node.
        """
        if not request.node_id:
            if not self._finished.done():
                self._finished.set_result("it was asked to end")
            return
        if self.nodes.state(request.node_id) in (None, NodeState.DEAD):
            raise KeyError(f"no node {request.node_id.hex()} is alive")
        link = self._links.get(request.node_id)
        if link is None:  # it has just joined, or its connection broke
            self._to_end[request.node_id] = request
        else:
            _send([link.outbox], DownItem(shutdown=request))

    def _let_go(self, node_id: bytes) -> None:
        """A node agreed to leave: tell it to, and all others that it is gone."""
        if (link := self._links.get(node_id)) is not None:
            end = control.Shutdown(node_id, True)
            _send([link.outbox], DownItem(shutdown=end))
        gone = node_state.Gone("it left, for nobody needed it")
        self._apply(self.nodes.handle(node_id, gone))

    def _keep(self, node_id: bytes) -> None:
        kept = node_state.Kept(time.monotonic())
        self._apply(self.nodes.handle(node_id, kept))

    async def connect(self, items: AsyncIterator[UpItem]) -> AsyncIterator[bytes]:
        """Serve the stream of one agent; its first item says which."""
        try:
            first = await asyncio.wait_for(anext(items), FIRST_REPORT_S)
        except (StopAsyncIteration, asyncio.TimeoutError):
            return
        if first.report is None:
            raise ProtocolError("the first item of a stream must be a report")
        node_id = first.report.node_id
        if self.nodes.state(node_id) in (None, NodeState.DEAD):
            yield codec.encode(DownItem(gone=self._farewell(node_id)))
            return
        link = self._open_link(node_id)
        reader = asyncio.ensure_future(self._read(link, first, items))
        try:
            async for item in link.outbox:
                yield item
        finally:
            reader.cancel()
            self._close_link(link)

    # --- streams ---------------------------------------------------------------------

    def _open_link(self, node_id: bytes) -> _Link:
        self._stream_number += 1
        link = _Link(node_id, self._stream_number)
        if (earlier := self._links.get(node_id)) is not None:
            earlier.outbox.close()
        self._links[node_id] = link
        event = node_state.StreamOpened(link.number, time.monotonic())
        self._apply(self.nodes.handle(node_id, event))
        link.outbox.put_view(self._views.encoded())
        for info in self.nodes.dead():  # it may not have heard of these ends
            gone = control.NodeGone(info.node_id, info.reason)
            _send([link.outbox], DownItem(gone=gone))
        for job_id in self.jobs.ended():
            _send([link.outbox], DownItem(job_ended=control.JobEnded(job_id)))
        if rows := self.actors.rows():
            _send([link.outbox], DownItem(actors=rows))
        if groups := self.groups.rows():
            _send([link.outbox], DownItem(groups=groups))
        if self._ending and not self._is_own(link):
            _send([link.outbox], _END)
        elif (request := self._to_end.pop(node_id, None)) is not None:
            _send([link.outbox], DownItem(shutdown=request))
        return link

    async def _read(
        self, link: _Link, first: UpItem, items: AsyncIterator[UpItem]
    ) -> None:
        try:
            self._take(link, first)
            async for item in items:
                self._take(link, item)
        finally:
            link.outbox.close()

    def _take(self, link: _Link, item: UpItem) -> None:
        if item.report is not None:
            event = node_state.Reported(item.report, time.monotonic())
            self._apply(self.nodes.handle(link.node_id, event))
        if item.logs is not None:
            self._route(item.logs)

    def _route(self, logs: control.LogBatch) -> None:
        """Pass log lines on to the agent of the job's driver, if it is there."""
        with contextlib.suppress(KeyError):
            link = self._links[self.jobs.get(logs.job_id).driver_node]
            link.outbox.put_logs(codec.encode(DownItem(logs=logs)))

    def _close_link(self, link: _Link) -> None:
        if self._links.get(link.node_id) is not link:
            return  # a newer stream has taken its place
        del self._links[link.node_id]
        self._links_changed.set()
        event = node_state.StreamBroken(link.number, time.monotonic())
        self._apply(self.nodes.handle(link.node_id, event))
        self._spawn(self._probe(link.node_id))

    async def _probe(self, node_id: bytes) -> None:
        """Find out quickly if the process of a node that is away has ended."""
        while self.nodes.state(node_id) in _ABSENT:
            has_ended = await self.peers.has_ended(node_id, RECONNECT_S)
            if has_ended and self.nodes.state(node_id) in _ABSENT:
                gone = node_state.Gone("its agent's process ended")
                self._apply(self.nodes.handle(node_id, gone))
            await asyncio.sleep(PROBE_S)

    def _farewell(self, node_id: bytes) -> control.NodeGone:
        info = self.nodes.get(node_id)
        return control.NodeGone(node_id, info.reason if info else "it never registered")

    def _is_own(self, link: _Link) -> bool:
        info = self.nodes.get(link.node_id)
        return info is not None and info.is_head

    async def _others_left(self) -> None:
        """Wait for the end of all streams, and of nodes whose stream is to come."""
        while not all(self._is_own(link) for link in self._links.values()) or any(
            self.nodes.state(node.node_id) in _TO_COME and not node.is_head
            for node in self.nodes.alive()
        ):
            self._links_changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._links_changed.wait(), self._tick_s)

    # --- effects ---------------------------------------------------------------------

    def _apply(self, effects: Iterable[node_state.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, node_state.ViewChanged):
                self._views.changed()
                self.groups.wake()
            else:
                self._bury(effect.node_id, effect.reason)

    def _bury(self, node_id: bytes, reason: str) -> None:
        _log.warning("node %s is dead: %s", node_id.hex(), reason)
        self.save()
        self._tell_all(DownItem(gone=control.NodeGone(node_id, reason)))
        if (link := self._links.get(node_id)) is not None:
            link.outbox.close()
        self._spawn(self.peers.forget(node_id))
        self._end_all_of(node_id, reason)
        self.groups.wake()

    def _end_all_of(self, node_id: bytes, reason: str) -> None:
        for job_id in self.jobs.of_node(node_id):
            self.end_job(job_id)
        self.groups.perform(self.groups.table.node_gone(node_id))
        self.actors.perform(self.actors.table.node_gone(node_id, reason))

    def _tell_all(self, item: DownItem) -> None:
        _send(self._outboxes(), item)

    def _outboxes(self) -> list[Outbox]:
        return [link.outbox for link in self._links.values()]

    async def _tick_for_ever(self) -> None:
        before_s = time.monotonic()
        while True:
            await asyncio.sleep(self._tick_s)
            now_s = time.monotonic()
            late_s = now_s - before_s - self._tick_s
            self._apply(self.nodes.tick(now_s, late_s if late_s > self._tick_s else 0))
            before_s = now_s

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the head failed", exc_info=error)

    # --- helpers ---------------------------------------------------------------------

    def _check_versions(self, request: control.RegisterNode) -> list[str]:
        theirs = Versions(request.python, request.sparkray)
        where = f"node {request.node.host_name} ({_short(request.node.node_id)})"
        line = difference(where, theirs, "its head", self._versions)
        if not theirs.fits(self._versions):
            raise ProtocolError(line)
        if line:
            _log.warning("%s", line)
        return [line] if line else []


def _opened(
    state_file: Path | None, cluster_id: bytes, settings: Settings
) -> tuple[Storage | None, Tables]:
    def empty() -> Tables:
        return Tables.empty(settings.node_timeout_s, RECONNECT_S)

    return (
        (None, empty()) if state_file is None else load(state_file, cluster_id, empty)
    )


def _send(outboxes: list[Outbox], item: DownItem) -> None:
    body = codec.encode(item)
    for outbox in outboxes:
        outbox.put(body)


def _short(node_id: bytes) -> str:
    return node_id.hex()[:8]
