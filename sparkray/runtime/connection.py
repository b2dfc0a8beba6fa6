"""How a process attaches to a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from sparkray.config import Settings
from sparkray.protocol.messages import JobConfig


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How a process attaches to the agent of its host.

    Attributes:
        agent_socket: path of the agent's Unix socket.
        token: the cluster's secret.
        kind: "driver", "udf" or "worker".
        config: the job's configuration; None where the agent knows it (workers).
        job_id: the job to belong to; empty for a new one.
        worker_id: our id; empty for a new one.
        socket_dir: where our own Unix socket goes.
        host: address that other nodes reach us at; "" if only this host shall.
        ports: first and last port of our TCP listener; (0, 0) any.
        runtime_env: canonical JSON of this process's environment.
        timeout_s: how long attaching may take.
        settings: of this process; the agent's shared ones win.
        forked_from: id of the process that this one was forked from, which had joined
            already; 0 if none.
    """

    agent_socket: str
    token: bytes
    kind: str
    config: JobConfig | None
    job_id: bytes = b""
    worker_id: bytes = b""
    socket_dir: str = ""
    host: str = ""
    ports: tuple[int, int] = (0, 0)
    runtime_env: str = ""
    timeout_s: float = 30.0
    settings: Settings = field(default_factory=Settings)
    forked_from: int = 0

    def socket_path(self, worker_id: bytes) -> str:
        """Return where a runtime with this id listens on its host."""
        directory = self.socket_dir or os.path.join(
            os.path.dirname(self.agent_socket), "sockets"
        )
        return os.path.join(directory, f"{worker_id[:8].hex()}.sock")
