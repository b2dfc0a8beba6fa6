"""What of the head's tables outlives the head, as rows of bytes.  Pure.

    tables --changes--> rows --(storage)--> rows --restored--> tables

One row a thing, written whole when it changes; of an actor, what never changes (its
class and arguments) is a row of its own.  What agents report again anyway is no row:
what is free, who waits, log lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from sparkray.head.state.actors import Actor, ActorState, ActorTable
from sparkray.head.state.jobs import JobTable
from sparkray.head.state.kv import KVTable
from sparkray.head.state.nodes import NodeTable
from sparkray.head.state.placement import Group, GroupTable
from sparkray.protocol import codec
from sparkray.protocol.actors import CreateActor
from sparkray.protocol.control import JobInfo, NodeInfo
from sparkray.protocol.records import Address

_T = TypeVar("_T")

#: Kinds of rows.
ACTOR: Final = "actor"
CREATION: Final = "creation"
GROUP: Final = "group"
HEAD: Final = "head"
JOB: Final = "job"
KV: Final = "kv"
NODE: Final = "node"


class Row(NamedTuple):
    """One thing that is kept."""

    kind: str
    key: bytes
    body: bytes | None  #: None: it is kept no longer


class About(msgspec.Struct, frozen=True):
    """Which cluster the rows are of, and how often its head has started."""

    cluster_id: bytes
    starts: int


class _SavedActor(msgspec.Struct, array_like=True):
    """An actor without its creation."""

    class_name: str
    state: ActorState
    version: int
    incarnation: int
    restarts_left: int
    node_id: bytes
    worker_id: bytes
    lease_id: bytes
    address: Address | None
    pid: int
    reason: str
    error: bytes


@dataclass(slots=True)
class Tables:
    """All that a head knows."""

    nodes: NodeTable
    jobs: JobTable
    kv: KVTable
    actors: ActorTable
    groups: GroupTable

    @classmethod
    def empty(cls, node_timeout_s: float, reconnect_s: float) -> Tables:
        nodes = NodeTable(node_timeout_s=node_timeout_s, reconnect_s=reconnect_s)
        return cls(nodes, JobTable(), KVTable(), ActorTable(), GroupTable())


# --- tables -> rows -------------------------------------------------------------------


def changes(tables: Tables) -> list[Row]:
    """Return what has to be written; it counts as written from now on."""
    rows = [
        *_changed(NODE, tables.nodes.changed, tables.nodes.get),
        *_changed(JOB, tables.jobs.changed, tables.jobs.find),
        *_changed(GROUP, tables.groups.changed, tables.groups.groups.get),
        *_changed_kv(tables.kv),
        *_changed_actors(tables.actors),
    ]
    forget_changes(tables)
    return rows


def forget_changes(tables: Tables) -> None:
    """Of a head that keeps nothing."""
    tables.nodes.changed.clear()
    tables.jobs.changed.clear()
    tables.groups.changed.clear()
    tables.kv.changed.clear()
    tables.actors.changed.clear()


def _changed(
    kind: str, keys: Iterable[bytes], get: Callable[[bytes], Any]
) -> Iterator[Row]:
    for key in keys:
        value = get(key)
        yield Row(kind, key, None if value is None else codec.encode(value))


def _changed_kv(kv: KVTable) -> Iterator[Row]:
    for namespace, key in kv.changed:
        yield Row(KV, codec.encode((namespace, key)), kv.get(namespace, key))


def _changed_actors(table: ActorTable) -> Iterator[Row]:
    for actor_id in table.changed:
        actor = table.actors.get(actor_id)
        if actor is None:
            yield Row(ACTOR, actor_id, None)
            yield Row(CREATION, actor_id, None)
            continue
        yield Row(ACTOR, actor_id, codec.encode(_of_actor(actor)))
        if actor.is_new:
            actor.is_new = False
            yield Row(CREATION, actor_id, codec.encode(actor.request))


def _of_actor(actor: Actor) -> _SavedActor:
    names = _SavedActor.__struct_fields__
    return _SavedActor(*(getattr(actor, name) for name in names))


# --- rows -> tables -------------------------------------------------------------------


def about(rows: Iterable[Row]) -> About | None:
    """Return whose rows these are, None if that is not among them.

    Raises:
        ProtocolError: it cannot be decoded.
    """
    for row in rows:
        if row.kind == HEAD and row.body is not None:
            return codec.decode_as(About, row.body)
    return None


def restore(tables: Tables, rows: Iterable[Row], now_s: float, starts: int) -> None:
    """Fill empty tables.

    Args:
        now_s: the monotonic clock: nodes are waited for from now on.
        starts: how often the head of the cluster has started, with this time.

    Raises:
        ProtocolError: a row cannot be decoded.  The tables are of no use then.
        KeyError: an actor is without its creation.
    """
    by_kind: dict[str, dict[bytes, bytes]] = {}
    for row in rows:
        if row.body is not None:
            by_kind.setdefault(row.kind, {})[row.key] = row.body
    tables.nodes.restore(_decoded(NodeInfo, by_kind.get(NODE)), now_s)
    tables.jobs.restore(_decoded(JobInfo, by_kind.get(JOB)))
    tables.groups.restore(_decoded(Group, by_kind.get(GROUP)), starts)
    tables.actors.restore(
        _actor(body, by_kind[CREATION][actor_id])
        for actor_id, body in by_kind.get(ACTOR, {}).items()
    )
    for key, value in by_kind.get(KV, {}).items():
        namespace, name = codec.decode_as(tuple[str, bytes], key)
        tables.kv.put(namespace, name, value, overwrite=True)
    forget_changes(tables)


def _decoded(kind: type[_T], bodies: dict[bytes, bytes] | None) -> list[_T]:
    return [codec.decode_as(kind, body) for body in (bodies or {}).values()]


def _actor(body: bytes, creation: bytes) -> Actor:
    saved = codec.decode_as(_SavedActor, body)
    request = codec.decode_as(CreateActor, creation)
    values = msgspec.structs.asdict(saved)
    return Actor(request, is_new=False, **values)
