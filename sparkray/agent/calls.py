"""What attached runtimes ask of their agent, each message to who serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from sparkray import stacks
from sparkray.agent.actors import ActorDesk
from sparkray.agent.fleet import Fleet
from sparkray.agent.jobs import JobDesk
from sparkray.agent.leasing import LeaseDesk
from sparkray.agent.members import Member
from sparkray.agent.modules import ModuleDesk
from sparkray.agent.objects import ObjectDesk
from sparkray.agent.polls import Polls
from sparkray.agent.uplink import Uplink
from sparkray.exceptions import ProtocolError
from sparkray.protocol import control
from sparkray.protocol import messages as m
from sparkray.protocol.stacks import ProcessStacks, StackList
from sparkray.transport.errors import kind_of

_log = logging.getLogger(__name__)

#: Deadlines of calls to other agents.
KILL_CALL_S: Final = 10.0
DEATH_CALL_S: Final = 8.0


class RuntimeCalls:
    """Takes every message of an attached runtime.

    Args:
        flush_logs: sends what workers have printed.
        spawn: runs a coroutine beside everything else.
    """

    def __init__(
        self,
        node_id: bytes,
        *,
        jobs: JobDesk,
        leases: LeaseDesk,
        fleet: Fleet,
        objects: ObjectDesk,
        actors: ActorDesk,
        modules: ModuleDesk,
        uplink: Uplink,
        flush_logs: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._node_id = node_id
        self._jobs, self._leases, self._fleet = jobs, leases, fleet
        self._objects, self._uplink, self._spawn = objects, uplink, spawn
        self._actors, self._modules = actors, modules
        self._flush = flush_logs
        self._polls = Polls()

    def receive(self, member: Member, message: Any) -> None:
        """Serve one message.  A call gets an answer even if serving it fails.

        Raises:
            ProtocolError: agents take no such message.
        """
        try:
            self._serve(member, message)
        except ProtocolError:
            raise
        except Exception as error:
            _log.exception("a message of process %d failed", member.pid)
            if hasattr(message, "call"):
                member.channel.fail(message.call, error)

    def _serve(self, member: Member, message: Any) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is not None:
            handler(self, member, message)
            return
        answer = self._objects.receive(member.worker_id, message)
        if answer is not None:
            self._answer(member, message.call, answer)

    def _request_leases(self, member: Member, message: m.RequestLeases) -> None:
        job = self._jobs.get(member.job_id)
        env = "" if job is None else job.config.runtime_env
        self._leases.request(member, message, env)

    def _withdraw(self, member: Member, message: m.WithdrawRequest) -> None:
        self._leases.withdraw(member, message.call)

    def _return_lease(self, member: Member, message: m.ReturnLease) -> None:
        self._leases.give_back(message.lease_id, message.reusable)

    def _blocked(self, member: Member, message: m.Blocked) -> None:
        self._leases.blocked(member.worker_id, True)

    def _unblocked(self, member: Member, message: m.Unblocked) -> None:
        self._leases.blocked(member.worker_id, False)

    def _spent(self, member: Member, message: m.WorkerSpent) -> None:
        self._fleet.spent(member.worker_id)

    def _keep(self, member: Member, message: m.KeepObjects) -> None:
        if not self._jobs.has_ended(member.job_id):
            self._objects.keep(message.object_ids, member.job_id)

    def _flush_logs(self, member: Member, message: m.FlushLogs) -> None:
        self._flush()
        member.channel.send(m.Done(message.call))

    def _kill_worker(self, member: Member, message: m.KillWorker) -> None:
        self._answer(member, message.call, self._kill(message))

    async def _kill(self, message: m.KillWorker) -> m.Done:
        if message.node_id == self._node_id:
            self._fleet.kill(message.worker_id, "signal", message.reason)
        else:
            request = control.KillPeerWorker(message.worker_id, message.reason)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._uplink.call_peer(
                    message.node_id, "KillWorker", request, KILL_CALL_S
                )
        return m.Done(message.call)

    def _ask_death(self, member: Member, message: m.AskDeath) -> None:
        self._answer(member, message.call, self._death(message))

    async def _death(self, message: m.AskDeath) -> m.Death:
        if message.node_id == self._node_id:
            record = await self._fleet.death_of(message.worker_id)
            return m.Death(message.call, record.kind, record.reason, record.log_tail)
        request = control.AskPeerDeath(message.worker_id)
        try:
            told = await self._uplink.call_peer(
                message.node_id, "AskDeath", request, DEATH_CALL_S
            )
        except (ConnectionError, TimeoutError) as error:
            reason = f"its node {message.node_id.hex()} does not answer: {error}"
            return m.Death(message.call, "node", reason, "")
        return m.Death(message.call, told.kind, told.reason, told.log_tail)

    def _watch_actor(self, member: Member, message: m.WatchActor) -> None:
        self._actors.watch(member, message)

    def _actor_started(self, member: Member, message: m.ActorStarted) -> None:
        self._actors.started(member, message)

    def _actor_exiting(self, member: Member, message: m.ActorExiting) -> None:
        self._actors.exiting(member, message)

    def _head_call(self, member: Member, message: m.HeadCall) -> None:
        if message.method == "CreateActor":
            self._actors.made_by(member)

        async def pass_on() -> m.HeadReply:
            body = await self._uplink.pass_on(message.method, message.body)
            return m.HeadReply(message.call, body)

        self._answer(member, message.call, pass_on())

    def _find_module(self, member: Member, message: m.FindModule) -> None:
        async def find() -> m.ModuleFound:
            place = await self._modules.directory_of(member.job_id, message.name)
            return m.ModuleFound(message.call, place)

        self._answer(member, message.call, find())

    def _module_found(self, member: Member, message: m.ModuleFound) -> None:
        self._modules.found(message)

    def _polled(self, member: Member, message: Any) -> None:
        self._polls.answered(member, message)

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

        self._spawn(run())

    async def list_objects(self, members: Iterable[Member]) -> control.ObjectList:
        """Ask runtimes for the objects that they own; late ones are named."""
        answers, late = await self._polls.ask(members, m.DumpObjects)
        return control.ObjectList(
            rows=[row for _, answer in answers for row in answer.rows],
            store_used_bytes={self._node_id.hex(): self._objects.used_bytes},
            missing=[_describe(member) for member in late],
        )

    async def list_stacks(self, members: Iterable[Member]) -> StackList:
        """Ask runtimes what they do, and look at this process; late ones are named."""
        answers, late = await self._polls.ask(members, m.DumpStacks)
        host_name = socket.gethostname()
        own = await asyncio.to_thread(stacks.of_threads)
        return StackList(
            [
                ProcessStacks("node", host_name, os.getpid(), own),
                *(
                    ProcessStacks(member.kind, host_name, member.pid, answer.threads)
                    for member, answer in answers
                ),
            ],
            missing=[_describe(member) for member in late],
        )


def _describe(member: Member) -> str:
    return f"process {member.pid} on {socket.gethostname()}"


_HANDLERS: Final[dict[type, Callable[[RuntimeCalls, Member, Any], None]]] = {
    m.RequestLeases: RuntimeCalls._request_leases,
    m.WithdrawRequest: RuntimeCalls._withdraw,
    m.ReturnLease: RuntimeCalls._return_lease,
    m.Blocked: RuntimeCalls._blocked,
    m.WorkerSpent: RuntimeCalls._spent,
    m.Unblocked: RuntimeCalls._unblocked,
    m.FlushLogs: RuntimeCalls._flush_logs,
    m.KeepObjects: RuntimeCalls._keep,
    m.KillWorker: RuntimeCalls._kill_worker,
    m.AskDeath: RuntimeCalls._ask_death,
    m.HeadCall: RuntimeCalls._head_call,
    m.WatchActor: RuntimeCalls._watch_actor,
    m.ActorStarted: RuntimeCalls._actor_started,
    m.ActorExiting: RuntimeCalls._actor_exiting,
    m.ObjectsDumped: RuntimeCalls._polled,
    m.StacksDumped: RuntimeCalls._polled,
    m.FindModule: RuntimeCalls._find_module,
    m.ModuleFound: RuntimeCalls._module_found,
}
