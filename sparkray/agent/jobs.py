"""The jobs that run, at least in part, on this node."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from itertools import chain, repeat
from typing import Any

from sparkray.agent.channels import AgentChannel
from sparkray.agent.fleet import Fleet
from sparkray.agent.logs import Printed
from sparkray.agent.members import Job, Member
from sparkray.agent.state.workers import PoolKey
from sparkray.agent.uplink import Uplink
from sparkray.exceptions import ClusterError, ProtocolError
from sparkray.ids import new_job_id
from sparkray.protocol import control
from sparkray.protocol.messages import Attach, JobConfig, LogLines
from sparkray.protocol.versions import Versions, difference, own_versions

_log = logging.getLogger(__name__)

#: Log lines for a driver that does not read are dropped beyond this.
MAX_LOG_BACKLOG_BYTES = 4 * 1024 * 1024
#: Pauses between attempts to tell the head that a job ended.
END_PAUSES_S = (0.2, 1.0, 5.0)
LAST_END_PAUSE_S = 30.0


class JobDesk:
    """Begins, finds and ends jobs.

    Args:
        prestart: how many workers a new job gets before it asks.
        spawn: runs a coroutine beside everything else.
    """

    def __init__(
        self,
        node_id: bytes,
        uplink: Uplink,
        fleet: Fleet,
        *,
        prestart: int,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._node_id, self._uplink, self._fleet = node_id, uplink, fleet
        self._prestart, self._spawn = prestart, spawn
        self._jobs: dict[bytes, Job] = {}
        self._ended: set[bytes] = set()

    def get(self, job_id: bytes) -> Job | None:
        return self._jobs.get(job_id)

    def has_ended(self, job_id: bytes) -> bool:
        return job_id in self._ended

    async def begin(self, config: JobConfig | None, pid: int) -> Job:
        """Begin the job of a driver; its first workers start at once.

        Raises:
            ProtocolError: the driver does not say how its job is configured.
            ClusterError: the head is away.
        """
        if config is None:
            raise ProtocolError("a driver must say how its job is configured")
        job = Job(new_job_id(), config, time.time())
        self._jobs[job.job_id] = job
        try:
            self._fleet.start(PoolKey(job.job_id, config.runtime_env), self._prestart)
            self._fleet.preload(config.runtime_env, config.preload)
            await self._uplink.call("AddJob", self._add_job(job, pid))
        except BaseException:
            self.end_here(job.job_id)
            raise
        return job

    async def find(self, job_id: bytes) -> Job:
        """Return a job, asking the head for one that is new here.

        Raises:
            ClusterError: there is no such job, it has ended, or the head is away.
        """
        known = self._jobs.get(job_id)
        if known is not None:
            return known
        try:
            info = await self._uplink.call("GetJob", control.GetJob(job_id))
        except KeyError:
            raise ClusterError(f"there is no job {job_id.hex()}") from None
        if not info.alive or job_id in self._ended:
            raise ClusterError(f"job {job_id.hex()} has ended")
        job = Job(job_id, info.config, info.start_unix_s)
        if info.driver_node != self._node_id:
            job.driver_node = info.driver_node
        return self._jobs.setdefault(job_id, job)

    async def admit(self, message: Attach) -> Job:
        """Return the job that a new runtime belongs to; a driver begins one.

        Raises:
            ProtocolError: it does not say what it is, or its versions are others.
            ClusterError: as `find`.
        """
        _check_versions(message.versions)
        if message.kind not in ("driver", "udf", "worker"):
            raise ProtocolError(f"unknown kind of runtime {message.kind!r}")
        if message.kind != "driver" and message.job_id:
            return await self.find(message.job_id)
        return await self.begin(message.config, message.pid)

    def driver_gone(self, job_id: bytes) -> None:
        """The job ends, here and everywhere."""
        self.end_here(job_id)
        self._spawn(self._tell_end(job_id))

    def end_here(self, job_id: bytes) -> Job | None:
        """End the job's workers on this node; return what was known of it."""
        self._ended.add(job_id)
        self._fleet.end_job(job_id)
        return self._jobs.pop(job_id, None)

    async def end_own(self, timeout_s: float) -> None:
        """Tell the head that the jobs of drivers on this node end."""
        for job in list(self._jobs.values()):
            if job.driver is not None:
                request = control.JobEnded(job.job_id)
                try:
                    await self._uplink.call("EndJob", request, timeout_s)
                except ClusterError as error:
                    _log.info("the end of a job cannot be told: %s", error)
                    return

    def news(self) -> list[control.AddJob]:
        """Return what a head that came back may not know."""
        return [
            self._add_job(job, job.driver.pid)
            for job in self._jobs.values()
            if job.driver is not None
        ]

    def wants_logs(self, job_id: bytes) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.config.log_to_driver

    def tell_driver(self, job_id: bytes, text: str) -> None:
        """Send a line of our own to a job's driver."""
        self.printed(Printed(job_id, "", 0, [text], True))

    def printed(self, printed: Printed) -> None:
        """Send what a worker of this node printed to its job's driver, anywhere."""
        batch = control.LogBatch(
            job_id=printed.job_id,
            name=printed.name,
            pid=printed.pid,
            host=socket.gethostname(),
            lines=printed.lines,
            is_stderr=printed.is_stderr,
        )
        if not self.show(batch):
            self._uplink.send_logs(batch)

    def show(self, logs: control.LogBatch) -> bool:
        """Send lines to a job's driver; False if it is not attached to this agent."""
        job = self._jobs.get(logs.job_id)
        if job is None or job.driver is None:
            return False
        channel: AgentChannel = job.driver.channel
        if channel.backlog_bytes < MAX_LOG_BACKLOG_BYTES:
            channel.send(
                LogLines(logs.name, logs.pid, logs.host, logs.lines, logs.is_stderr)
            )
        return True

    def is_driver(self, member: Member) -> bool:
        job = self._jobs.get(member.job_id)
        return job is not None and job.driver is member

    def _add_job(self, job: Job, pid: int) -> control.AddJob:
        info = control.JobInfo(
            job_id=job.job_id,
            config=job.config,
            driver_node=self._node_id,
            driver_pid=pid,
            alive=True,
            start_unix_s=job.start_unix_s,
            end_unix_s=0.0,
        )
        return control.AddJob(info)

    async def _tell_end(self, job_id: bytes) -> None:
        for pause_s in chain(END_PAUSES_S, repeat(LAST_END_PAUSE_S)):
            try:
                await self._uplink.call("EndJob", control.JobEnded(job_id))
                return
            except ClusterError as error:
                _log.info("the end of job %s is not told yet: %s", job_id.hex(), error)
                await asyncio.sleep(pause_s)


def _check_versions(given: dict[str, str]) -> None:
    """Raise ProtocolError if a runtime cannot work with this agent."""
    theirs = Versions(given.get("python", ""), given.get("sparkray", ""))
    ours = own_versions()
    if not theirs.fits(ours):
        raise ProtocolError(difference("this process", theirs, "the node agent", ours))
