"""The life of every actor of the cluster.  Pure.

    create -> PENDING --placed, constructed--> ALIVE --worker ended--> RESTARTING -> ...
                 |                               |
                 +----- failed, killed ----------+-----> DEAD

Every start has a number, the incarnation; news of an earlier one is ignored.  What is
to be done comes back as effects: `Place` a new incarnation, `End` a worker, `Tell` all.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sparkray.exceptions import ActorAlreadyExistsError
from sparkray.protocol import actors as p
from sparkray.protocol.records import Address

#: How many dead actors are still listed; the oldest are forgotten first.
MAX_DEAD: Final = 1_000


class ActorState(enum.Enum):
    PENDING = p.PENDING
    """A worker is being found, or the constructor runs."""
    ALIVE = p.ALIVE
    """The constructor has ended well; calls are served."""
    RESTARTING = p.RESTARTING
    """As pending, but it was alive before: its state is lost, its queue is kept."""
    DEAD = p.DEAD
    """Final."""


@dataclass(slots=True, eq=False)
class Actor:
    """One actor."""

    request: p.CreateActor
    class_name: str
    state: ActorState = ActorState.PENDING
    version: int = 1
    incarnation: int = 1
    restarts_left: int = 0  #: -1 without limit
    node_id: bytes = b""
    worker_id: bytes = b""
    lease_id: bytes = b""
    address: Address | None = None
    pid: int = 0
    reason: str = ""
    error: bytes = b""
    is_new: bool = True  #: nothing of it was written yet

    def row(self) -> p.ActorRow:
        request = self.request
        return p.ActorRow(
            actor_id=request.actor_id,
            version=self.version,
            state=self.state.value,
            incarnation=self.incarnation,
            address=self.address,
            reason=self.reason,
            error=self.error,
            name=request.name,
            namespace=request.namespace,
            class_name=self.class_name,
            detached=request.detached,
            job_id=request.job_id,
            pid=self.pid,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Effect: find a worker for this incarnation and make it the actor."""

    actor: Actor
    incarnation: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Effect: tell the worker that was found to become the actor, perhaps again."""

    actor: Actor
    incarnation: int


@dataclass(frozen=True, slots=True)
class End:
    """Effect: end the worker (it may be gone) and give its lease back."""

    node_id: bytes
    worker_id: bytes
    lease_id: bytes
    reason: str
    gently: bool = False  #: it may run what it was told to run at its end


@dataclass(frozen=True, slots=True)
class Tell:
    """Effect: tell all agents of the actor's new row."""

    actor: Actor


Effect = Place | Begin | End | Tell


@dataclass(slots=True)
class ActorTable:
    """All actors, dead ones too."""

    actors: dict[bytes, Actor] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)  #: what has to be written
    _names: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def restore(self, actors: Iterable[Actor]) -> None:
        """Take what an earlier head wrote."""
        for actor in actors:
            request = actor.request
            self.actors[request.actor_id] = actor
            if request.name and actor.state is not ActorState.DEAD:
                self._names[request.namespace, request.name] = request.actor_id

    def resume(self) -> list[Effect]:
        """Go on where an earlier head stopped: actors that were being made.

        A worker that was found may have been told or not; telling it again is safe.
        """
        return [
            Begin(actor, actor.incarnation)
            if actor.worker_id
            else Place(actor, actor.incarnation)
            for actor in self.actors.values()
            if self.is_starting(actor, actor.incarnation)
        ]

    def create(
        self, request: p.CreateActor, class_name: str
    ) -> tuple[Actor, list[Effect]]:
        """Take an actor in.

        Raises:
            ValueError: a living actor has the name.
        """
        known = self.actors.get(request.actor_id)
        if known is not None:
            return known, []
        if request.name:
            holder = self._names.get((request.namespace, request.name))
            if holder is not None:
                if request.get_if_exists:
                    return self.actors[holder], []
                raise ActorAlreadyExistsError(
                    f"an actor named {request.name!r} lives in namespace"
                    f" {request.namespace!r} already; take another name, or"
                    " get_if_exists=True"
                )
            self._names[request.namespace, request.name] = request.actor_id
        actor = Actor(request, class_name, restarts_left=request.max_restarts)
        self.actors[request.actor_id] = actor
        self.changed.add(request.actor_id)
        return actor, [Tell(actor), Place(actor, 1)]

    def find(self, name: str, namespace: str) -> Actor:
        """Return the living actor of a name.

        Raises:
            ValueError: there is none; names the namespace that was searched.
        """
        actor_id = self._names.get((namespace, name))
        if actor_id is None:
            raise ValueError(
                f"no actor is named {name!r} in namespace {namespace!r}; it may have"
                " ended, or live in another namespace"
            )
        return self.actors[actor_id]

    def placed(
        self,
        actor: Actor,
        incarnation: int,
        node_id: bytes,
        worker: bytes,
        lease: bytes,
    ) -> list[Effect]:
        """A worker was found; the constructor begins there."""
        if not self.is_starting(actor, incarnation):
            return [End(node_id, worker, lease, "the actor was killed meanwhile")]
        actor.node_id, actor.worker_id, actor.lease_id = node_id, worker, lease
        self.changed.add(actor.request.actor_id)
        return [Begin(actor, incarnation)]

    def not_begun(self, actor: Actor, incarnation: int, reason: str) -> list[Effect]:
        """The worker was lost before the constructor began: that costs no restart."""
        if not self.is_starting(actor, incarnation):
            return []
        effects = self._ended(actor, reason)
        actor.incarnation += 1
        self._forget_worker(actor)
        return [*effects, *self._changed(actor), Place(actor, actor.incarnation)]

    def unplaceable(
        self, actor: Actor, incarnation: int, reason: str, error: bytes
    ) -> list[Effect]:
        """No worker can be had for it."""
        if not self.is_starting(actor, incarnation):
            return []
        return self._die(actor, reason, error)

    def news(self, news: p.ActorNews) -> list[Effect]:
        actor = self.actors.get(news.actor_id)
        if actor is None or actor.incarnation != news.incarnation:
            return []
        if actor.state is ActorState.DEAD:
            return []
        if news.kind == "alive":
            return self._came_up(actor, news)
        if news.kind in ("failed", "left"):
            return self._die(actor, news.reason, news.error)
        return self._worker_ended(actor, news.reason)

    def kill(
        self, actor_id: bytes, reason: str, *, no_restart: bool, gently: bool = False
    ) -> list[Effect]:
        actor = self.actors.get(actor_id)
        if actor is None or actor.state is ActorState.DEAD:
            return []
        if no_restart:
            return self._die(actor, reason, gently=gently)
        ended = self._ended(actor, reason)
        if not ended:
            return []
        actor.worker_id = b""  # it is ended once
        return [*ended, *self._worker_ended(actor, reason)]

    def need(self, node_id: bytes) -> bool:
        """Tell if living actors would end with a node: those there, and those that a
        process there has made."""
        return any(
            node_id == actor.node_id
            or (node_id == actor.request.creator.node_id and not actor.request.detached)
            for actor in self.actors.values()
            if actor.state is not ActorState.DEAD
        )

    def owner_gone(self, worker_id: bytes) -> list[Effect]:
        """A process has ended; the actors that it made end with it."""
        return self._end_all(
            "the process that made it has ended",
            lambda actor: actor.request.creator.worker_id == worker_id,
        )

    def job_ended(self, job_id: bytes) -> list[Effect]:
        return self._end_all(
            "its job has ended", lambda actor: actor.request.job_id == job_id
        )

    def group_removed(self, group_id: bytes, reason: str) -> list[Effect]:
        """Their placement group is gone: its actors end, detached ones too."""
        effects: list[Effect] = []
        for actor in list(self.actors.values()):
            inside = actor.request.spec.strategy.group_id == group_id
            if inside and actor.state is not ActorState.DEAD:
                effects += self._die(actor, reason)
        return effects

    def node_gone(self, node_id: bytes, reason: str) -> list[Effect]:
        """Actors of the node start elsewhere; those made from there end."""
        effects = self._end_all(
            f"the node of the process that made it died: {reason}",
            lambda actor: actor.request.creator.node_id == node_id,
            lost_node=node_id,
        )
        for actor in list(self.actors.values()):
            if actor.node_id == node_id and actor.state is not ActorState.DEAD:
                actor.worker_id = b""
                effects += self._worker_ended(actor, f"its node died: {reason}")
        return effects

    def _end_all(
        self, reason: str, belongs: Callable[[Actor], bool], lost_node: bytes = b""
    ) -> list[Effect]:
        effects: list[Effect] = []
        for actor in list(self.actors.values()):
            living = actor.state is not ActorState.DEAD
            if living and not actor.request.detached and belongs(actor):
                if lost_node and actor.node_id == lost_node:
                    actor.worker_id = b""  # nobody is there to end it
                effects += self._die(actor, reason, gently=True)
        return effects

    def is_starting(self, actor: Actor, incarnation: int) -> bool:
        """Tell if this incarnation still looks for a worker or is being made."""
        starting = actor.state in (ActorState.PENDING, ActorState.RESTARTING)
        return starting and actor.incarnation == incarnation

    def _came_up(self, actor: Actor, news: p.ActorNews) -> list[Effect]:
        actor.state = ActorState.ALIVE
        actor.address, actor.pid, actor.reason = news.address, news.pid, ""
        return self._changed(actor)

    def _worker_ended(self, actor: Actor, reason: str) -> list[Effect]:
        if not actor.restarts_left:
            return self._die(actor, reason)
        if actor.restarts_left > 0:
            actor.restarts_left -= 1
        actor.state = ActorState.RESTARTING
        actor.incarnation += 1
        self._forget_worker(actor)
        actor.reason = reason
        return [*self._changed(actor), Place(actor, actor.incarnation)]

    def _die(
        self, actor: Actor, reason: str, error: bytes = b"", *, gently: bool = False
    ) -> list[Effect]:
        effects = self._ended(actor, reason, gently=gently)
        actor.state = ActorState.DEAD
        actor.reason, actor.error = reason, error
        self._forget_worker(actor)
        name = (actor.request.namespace, actor.request.name)
        if self._names.get(name) == actor.request.actor_id:
            del self._names[name]
        self._forget_old()
        return [*effects, *self._changed(actor)]

    def _ended(
        self, actor: Actor, reason: str, *, gently: bool = False
    ) -> list[Effect]:
        if not actor.worker_id:
            return []
        return [End(actor.node_id, actor.worker_id, actor.lease_id, reason, gently)]

    def _forget_worker(self, actor: Actor) -> None:
        actor.node_id = actor.worker_id = actor.lease_id = b""
        actor.address, actor.pid = None, 0

    def _changed(self, actor: Actor) -> list[Effect]:
        actor.version += 1
        self.changed.add(actor.request.actor_id)
        return [Tell(actor)]

    def _forget_old(self) -> None:
        dead = [id_ for id_, a in self.actors.items() if a.state is ActorState.DEAD]
        for old in dead[:-MAX_DEAD]:
            del self.actors[old]
            self.changed.add(old)
