"""Gets modules that only a job's driver has, for workers of this node."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from sparkray.agent.environments import EnvironmentDesk
from sparkray.agent.jobs import JobDesk
from sparkray.agent.members import Member
from sparkray.agent.uplink import Uplink
from sparkray.protocol import messages as m
from sparkray.protocol.modules import FindPeerModule, PeerModule

#: How long a driver may take to look, pack and upload.
DRIVER_S: Final = 120.0


class ModuleDesk:
    """Asks drivers, wherever they are."""

    def __init__(
        self, jobs: JobDesk, environments: EnvironmentDesk, uplink: Uplink
    ) -> None:
        self._jobs, self._environments, self._uplink = jobs, environments, uplink
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._looking: dict[tuple[bytes, str], asyncio.Future[str]] = {}
        self._numbers = itertools.count()

    async def directory_of(self, job_id: bytes, name: str) -> str:
        """Return where the module lies on this node now; "" if the driver has none.

        Raises:
            ConnectionError, TimeoutError: the driver does not answer.
            RuntimeEnvSetupError: it has one that does not arrive.
        """
        key = job_id, name
        looking = self._looking.get(key)
        if looking is None:  # many workers may want the same at a time
            looking = asyncio.ensure_future(self._package_of(job_id, name))
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
            self._looking[key] = looking
        package = await asyncio.shield(looking)
        return await self._environments.package(package) if package else ""

    async def ask_driver(self, job_id: bytes, name: str) -> PeerModule:
        """Ask a driver that is attached to this agent, for another agent."""
        job = self._jobs.get(job_id)
        if job is None or job.driver is None:
            return PeerModule("")
        return PeerModule(await self._ask(job.driver, name))

    def found(self, message: m.ModuleFound) -> None:
        """A driver's answer."""
        waiting = self._asked.get(message.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(message.place)

    async def _package_of(self, job_id: bytes, name: str) -> str:
        job = self._jobs.get(job_id)
        if job is None:
            return ""
        if job.driver is not None:
            return await self._ask(job.driver, name)
        if not job.driver_node:
            return ""
        request = FindPeerModule(job_id, name)
        answer: PeerModule = await self._uplink.call_peer(
            job.driver_node, "FindModule", request, DRIVER_S
        )
        return answer.package

    async def _ask(self, driver: Member, name: str) -> str:
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            driver.channel.send(m.FindModule(number, name))
            return await asyncio.wait_for(waiting, DRIVER_S)
        finally:
            del self._asked[number]
