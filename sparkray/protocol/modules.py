"""Messages by which a task's import finds a module that only the driver has.

    worker ──FindModule──▶ its agent ──FindPeerModule──▶ the driver's agent ──▶ driver
           ◀─ModuleFound──           ◀──PeerModule─────                    ◀──

The module travels as a package of runtime environments do: see `protocol.environments`.
"""

from __future__ import annotations

import msgspec


class FindModule(msgspec.Struct, array_like=True, tag=36):
    """Worker -> its agent, and agent -> driver: an import here finds no such module.

    Repeatable.
    Answer: `ModuleFound`.
    Errors: `CallFailed` with RuntimeEnvSetupError, ClusterError, ConnectionError or
    TimeoutError (the driver does not answer).
    """

    call: int
    name: str  #: of the module at the top: "package" of "package.module"


class ModuleFound(msgspec.Struct, array_like=True, tag=37):
    """Driver -> its agent, and agent -> worker: where it is.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    place: str  #: to an agent a package, to a worker a directory; "": nothing found


class FindPeerModule(msgspec.Struct):
    """Agent -> the agent of a job's driver: has your driver such a module?

    Repeatable.
    Answer: `PeerModule`.
    Errors: TimeoutError: the driver does not answer.
    """

    job_id: bytes
    name: str


class PeerModule(msgspec.Struct):
    """Agent -> agent: what the driver said.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    package: str  #: "" for none
