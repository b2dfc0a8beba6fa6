"""The agent's gRPC face: takes messages, delegates, answers with messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sparkray.protocol import actors as a
from sparkray.protocol import control as c
from sparkray.protocol import draining as d
from sparkray.protocol import placement as g
from sparkray.protocol.modules import FindPeerModule, PeerModule
from sparkray.protocol.stacks import ListStacks, StackList

if TYPE_CHECKING:
    from sparkray.agent.service import AgentService
    from sparkray.transport.server import Calls


class AgentServicer:
    """Serves `AGENT_CALLS`."""

    service = "Agent"
    calls: ClassVar[Calls] = c.AGENT_CALLS
    streams: ClassVar[Calls] = {}

    def __init__(self, agent: AgentService) -> None:
        self._agent = agent

    async def lease(self, request: c.LeaseFromPeer) -> c.PeerLeases:
        await self._agent.jobs.find(request.spec.job_id)
        leases = await self._agent.leases.lend_to_peer(request)
        if request.spec.strategy.kind == a.ACTOR:
            self._agent.actors.lent(leases)
        return c.PeerLeases(leases)

    async def return_lease(self, request: c.ReturnPeerLease) -> c.Ok:
        self._agent.leases.give_back(request.lease_id, request.reusable)
        return c.Ok()

    async def kill_worker(self, request: c.KillPeerWorker) -> c.Ok:
        fleet = self._agent.fleet
        if request.gently:
            fleet.end(request.worker_id, "signal", request.reason)
            await fleet.death_of(request.worker_id)
        else:
            fleet.kill(request.worker_id, "signal", request.reason)
        return c.Ok()

    async def ask_death(self, request: c.AskPeerDeath) -> c.PeerDeath:
        record = await self._agent.fleet.death_of(request.worker_id)
        return c.PeerDeath(record.kind, record.reason, record.log_tail)

    async def become_actor(self, request: a.BecomeActor) -> c.Ok:
        self._agent.actors.become(request)
        return c.Ok()

    async def reserve_bundles(self, request: g.ReserveBundles) -> g.BundlesReserved:
        return g.BundlesReserved(await self._agent.leases.reserve(request))

    async def return_bundles(self, request: g.ReturnBundles) -> c.Ok:
        self._agent.leases.return_bundles(request)
        return c.Ok()

    async def free_objects(self, request: c.FreePeerObjects) -> c.Ok:
        self._agent.objects.free(request.object_ids)
        self._agent.objects.free_owners(request.owners)
        if request.inbox:
            self._agent.objects.close_inbox(request.inbox, request.keep)
        return c.Ok()

    async def find_module(self, request: FindPeerModule) -> PeerModule:
        return await self._agent.modules.ask_driver(request.job_id, request.name)

    async def drain(self, request: d.Drain) -> d.Drained:
        return d.Drained(await self._agent.draining.drain())

    async def list_objects(self, request: c.ListObjects) -> c.ObjectList:
        return await self._agent.list_objects()

    async def list_stacks(self, request: ListStacks) -> StackList:
        return await self._agent.list_stacks()
