"""The runtimes that are attached to this agent."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from sparkray.agent.channels import AgentChannel
from sparkray.protocol.messages import Address, JobConfig


@dataclass(slots=True, eq=False)
class Member:
    """A driver, UDF or worker process."""

    channel: AgentChannel
    kind: str  #: "driver", "udf" or "worker"
    worker_id: bytes
    pid: int
    job_id: bytes
    address: Address

    def remove_socket(self, session_dir: str) -> None:
        """Remove the file of its socket, which a process that was killed leaves."""
        directory, name = os.path.split(self.address.path)
        if directory == os.path.join(session_dir, "sockets"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


@dataclass(slots=True, eq=False)
class Job:
    """A job that runs, at least in part, on this node."""

    job_id: bytes
    config: JobConfig
    start_unix_s: float
    driver: Member | None = None  #: if it is attached to this very agent
    driver_node: bytes = b""  #: if it is not
