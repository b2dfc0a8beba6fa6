"""Messages between a node agent and its zygotes, over an inherited socket pair.

Both ends are processes of one node and one cluster; nobody else can reach the sockets,
so there is no handshake.  Frames as on the channels (`protocol.framing`), docstrings in
the form of `protocol.messages`.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from sparkray.exceptions import ProtocolError
from sparkray.protocol.codec import UNDECODABLE

#: In the name of a worker's file: its process id, which only the worker knows in time.
PID = "{pid}"
#: Set where OMP_NUM_THREADS is ours to choose: it follows the CPUs of the running task.
OMP_FOLLOWS = "SPARKRAY_OMP_FOLLOWS_CPUS"


class WorkerStart(msgspec.Struct, array_like=True, frozen=True):
    """All that a new worker process is told.  Part of `ForkWorker`."""

    agent_socket: str
    token: bytes
    worker_id: bytes
    job_id: bytes
    session_dir: str
    host: str
    port_min: int
    port_max: int
    runtime_env: str
    import_path: list[str] = []  #: of the runtime environment, before all else
    working_dir: str = ""  #: "": where the agent is
    setup_hook: str = ""  #: to be run before the first task


class Prepare(msgspec.Struct, array_like=True, tag=1):
    """Agent -> zygote, first message: what to remove if I vanish.

    Not repeatable.
    Answer: `Ready`, once the common modules are imported.
    Errors: none.
    """

    directories: list[str]


class ForkWorker(msgspec.Struct, array_like=True, tag=2):
    """Agent -> zygote: fork a worker whose output goes to these files; `PID` in their
    names stands for its process id.

    Not repeatable.
    Answer: `Forked`, later `Exited`.
    Errors: `ForkFailed`.
    """

    start: WorkerStart
    stdout: str
    stderr: str


class Preload(msgspec.Struct, array_like=True, tag=3):
    """Agent -> zygote: import these before further forks, whenever there is time.

    Repeatable.
    Answer: none.
    Errors: none; a module that cannot be imported is left to the worker.
    """

    modules: list[str]


class Ready(msgspec.Struct, array_like=True, tag=4):
    """Zygote -> agent: the common modules are imported.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    pid: int


class Forked(msgspec.Struct, array_like=True, tag=5):
    """Zygote -> agent: the worker's process exists.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    worker_id: bytes
    pid: int


class ForkFailed(msgspec.Struct, array_like=True, tag=6):
    """Zygote -> agent: the operating system refused the fork.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    worker_id: bytes
    reason: str


class Exited(msgspec.Struct, array_like=True, tag=7):
    """Zygote -> agent: the worker's process has ended.

    Not repeatable.  ``code`` is the exit code, or minus the signal.
    Answer: none.
    Errors: none.
    """

    worker_id: bytes
    pid: int
    code: int


class Leave(msgspec.Struct, array_like=True, tag=8):
    """Agent -> zygote: end your workers and yourself; the node lives on.

    Not repeatable.  Without it, the end of the socket means that the agent vanished.
    Answer: none.
    Errors: none.
    """


ZygoteMessage = Union[  # noqa: UP007
    Prepare, ForkWorker, Preload, Ready, Forked, ForkFailed, Exited, Leave
]

_decode = msgspec.msgpack.Decoder(ZygoteMessage).decode


def decode(body: bytes) -> Any:
    """Return the message of one frame.

    Raises:
        ProtocolError: the bytes are no known message.
    """
    try:
        return _decode(body)
    except UNDECODABLE as error:
        raise ProtocolError(f"undecodable zygote message: {error}") from error
