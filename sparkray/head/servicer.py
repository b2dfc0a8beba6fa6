"""The head's gRPC face: takes messages, delegates, answers with messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from sparkray.head.service import HeadService
from sparkray.protocol import actors as a
from sparkray.protocol import control as c
from sparkray.protocol import draining as d
from sparkray.protocol import placement as g
from sparkray.protocol.stacks import ListStacks, StackList
from sparkray.transport.server import Calls


class HeadServicer:
    """Serves `HEAD_CALLS`, `HEAD_AGENT_CALLS` and the streams of agents."""

    service = "Head"
    calls: ClassVar[Calls] = c.HEAD_CALLS | c.HEAD_AGENT_CALLS
    streams: ClassVar[Calls] = {"Connect": (c.UpItem, c.DownItem)}

    def __init__(self, head: HeadService) -> None:
        self._head = head

    def connect(self, items: AsyncIterator[c.UpItem]) -> AsyncIterator[bytes]:
        return self._head.connect(items)

    async def register_node(self, request: c.RegisterNode) -> c.NodeRegistered:
        return self._head.register_node(request)

    async def add_job(self, request: c.AddJob) -> c.Ok:
        self._head.jobs.add(request.job)
        self._head.save()
        return c.Ok()

    async def get_job(self, request: c.GetJob) -> c.JobInfo:
        return self._head.jobs.get(request.job_id)

    async def end_job(self, request: c.JobEnded) -> c.Ok:
        self._head.end_job(request.job_id)
        return c.Ok()

    async def list_nodes(self, request: c.ListNodes) -> c.NodeList:
        return c.NodeList(self._head.nodes.all())

    async def list_jobs(self, request: c.ListJobs) -> c.JobList:
        return c.JobList(self._head.jobs.all())

    async def status(self, request: c.ClusterStatus) -> c.StatusReport:
        return self._head.status()

    async def list_objects(self, request: c.ListObjects) -> c.ObjectList:
        return await self._head.peers.list_objects()

    async def list_stacks(self, request: ListStacks) -> StackList:
        return await self._head.peers.list_stacks()

    async def create_actor(self, request: a.CreateActor) -> a.ActorRow:
        return self._head.create_actor(request)

    async def get_actor(self, request: a.GetActor) -> a.NamedActor:
        actor = self._head.actors.table.find(request.name, request.namespace)
        return a.NamedActor(actor.row(), actor.request.handle)

    async def list_actors(self, request: a.ListActors) -> a.ActorList:
        return a.ActorList(self._head.actors.rows())

    async def kill_actor(self, request: a.KillActor) -> c.Ok:
        actors = self._head.actors
        effects = actors.table.kill(
            request.actor_id,
            request.reason,
            no_restart=request.no_restart,
            gently=request.gently,
        )
        actors.perform(effects)
        return c.Ok()

    async def actor_news(self, request: a.ActorNews) -> c.Ok:
        self._head.actors.perform(self._head.actors.table.news(request))
        return c.Ok()

    async def owner_gone(self, request: a.OwnerGone) -> c.Ok:
        actors = self._head.actors
        actors.perform(actors.table.owner_gone(request.worker_id))
        return c.Ok()

    async def create_placement_group(
        self, request: g.CreatePlacementGroup
    ) -> g.GroupRow:
        return self._head.groups.create(request)

    async def get_placement_group(self, request: g.GetPlacementGroup) -> g.GroupRow:
        return self._head.groups.get(request)

    async def wait_placement_group(self, request: g.WaitPlacementGroup) -> g.GroupRow:
        return await self._head.groups.wait(request)

    async def list_placement_groups(
        self, request: g.ListPlacementGroups
    ) -> g.GroupList:
        return g.GroupList(self._head.groups.rows())

    async def remove_placement_group(self, request: g.RemovePlacementGroup) -> c.Ok:
        self._head.groups.remove(request.group_id)
        return c.Ok()

    async def shutdown(self, request: c.Shutdown) -> c.Ok:
        self._head.shutdown(request)
        return c.Ok()

    async def drain_node(self, request: d.DrainNode) -> d.Drained:
        return d.Drained(await self._head.draining.drain(request.node_id))

    async def kv_put(self, request: c.KVPut) -> c.KVReply:
        before = self._head.kv.put(
            request.namespace, request.key, request.value, overwrite=request.overwrite
        )
        self._head.save()
        return c.KVReply(before)

    async def kv_get(self, request: c.KVGet) -> c.KVReply:
        return c.KVReply(self._head.kv.get(request.namespace, request.key))

    async def kv_delete(self, request: c.KVDelete) -> c.KVReply:
        before = self._head.kv.delete(request.namespace, request.key)
        self._head.save()
        return c.KVReply(before)

    async def kv_keys(self, request: c.KVKeys) -> c.KVKeyList:
        return c.KVKeyList(self._head.kv.keys(request.namespace, request.prefix))
