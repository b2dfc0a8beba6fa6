"""Messages about actors: who wants one, where it lives, how it ended.

    creator's runtime --CreateActor--> head --Lease, BecomeActor--> agent --> worker
    worker -> agent --ActorNews--> head --ActorRow on every agent's stream--> callers

Calls of actor methods go over task channels and are not here.  The docstrings follow
the form of `protocol.messages`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sparkray.protocol.records import Address, LeaseSpec, Strategy
from sparkray.protocol.task_channel import Argument

#: Strategy of a lease that is kept for as long as its actor lives.
ACTOR: Final = "ACTOR"
#: States of an actor, as told to callers.
PENDING: Final = "PENDING"
ALIVE: Final = "ALIVE"
RESTARTING: Final = "RESTARTING"
DEAD: Final = "DEAD"


class ActorCreation(msgspec.Struct, array_like=True, frozen=True):
    """How to make the instance.  The head keeps it as bytes; only the worker looks in.

    Part of `CreateActor`.
    """

    actor_id: bytes
    class_bytes: bytes  #: the class, pickled
    class_name: str
    args: bytes  #: pickled ``(args, kwargs)``; b"" for none
    refs: list[Argument] | None
    stored_args: Argument | None
    owner: Address
    name: str
    namespace: str
    resources: dict[str, int]
    runtime_env: str
    depth: int
    max_concurrency: int  #: 0: the default, 1 or 1,000 for async actors
    groups: dict[str, int]  #: concurrency groups: name -> calls at a time
    method_groups: dict[str, str]
    handle: bytes  #: what `get_actor` needs to make a handle
    strategy: Strategy = Strategy()


class CreateActor(msgspec.Struct):
    """Creator -> head: make an actor.

    Repeatable: a known ``actor_id`` gets its row again.
    Answer: `ActorRow`; the row of the existing one with ``get_if_exists``.
    Errors: ValueError (the name is taken).
    """

    actor_id: bytes
    job_id: bytes
    creator: Address
    name: str
    namespace: str
    get_if_exists: bool
    detached: bool
    max_restarts: int
    spec: LeaseSpec
    creation: bytes
    handle: bytes


class ActorRow(msgspec.Struct, frozen=True):
    """An actor as the head knows it.  Part of other messages; also an answer."""

    actor_id: bytes
    version: int  #: grows with every change
    state: str
    incarnation: int  #: how often it was started; calls belong to one incarnation
    address: Address | None  #: while it is ALIVE
    reason: str  #: why it is DEAD or RESTARTING
    error: bytes  #: serialized exception of its constructor, b"" for none
    name: str
    namespace: str
    class_name: str
    detached: bool
    job_id: bytes
    pid: int = 0


class GetActor(msgspec.Struct):
    """Anyone -> head: the living actor of this name.

    Repeatable.
    Answer: `NamedActor`.
    Errors: ValueError (no such name in this namespace).
    """

    name: str
    namespace: str


class NamedActor(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    row: ActorRow
    handle: bytes


class ListActors(msgspec.Struct):
    """Anyone -> head: all actors, dead ones too (the last thousand).

    Repeatable.
    Answer: `ActorList`.
    Errors: none.
    """


class ActorList(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    actors: list[ActorRow]


class KillActor(msgspec.Struct):
    """Anyone -> head: end this actor now; ``no_restart`` false lets it start again.

    ``gently``: once it has run what it was told to run at its end.

    Repeatable: a dead or unknown actor is left alone.
    Answer: `Ok`.
    Errors: none.
    """

    actor_id: bytes
    no_restart: bool
    reason: str
    gently: bool = False


class BecomeActor(msgspec.Struct):
    """Head -> agent: one of your leased workers shall be this actor.

    Repeatable: the worker ignores a second one.
    Answer: `Ok` at once; `ActorNews` once the constructor has ended.
    Errors: ClusterError (the worker or the lease is gone).
    """

    worker_id: bytes
    actor_id: bytes
    incarnation: int
    creation: bytes
    lease_id: bytes = b""  #: of the worker; b"": whatever it has


class ActorNews(msgspec.Struct):
    """Agent -> head: an actor came up, or its worker ended.

    Repeatable: an old incarnation is ignored.
    ``kind``: "alive", "failed" (the constructor raised; ``error``), "left" (it ended
    itself on purpose), or how the process ended: "signal", "exit", "oom", "node".
    Answer: `Ok`.
    Errors: none.
    """

    actor_id: bytes
    incarnation: int
    kind: str
    address: Address | None
    reason: str
    error: bytes
    pid: int


class OwnerGone(msgspec.Struct):
    """Agent -> head: a process that made actors has ended; they end with it.

    Repeatable.
    Answer: `Ok`.
    Errors: none.
    """

    worker_id: bytes
