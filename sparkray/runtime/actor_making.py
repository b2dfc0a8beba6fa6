"""Actors, their creator's side: making them, and ending them with their last handle.

    create -> CreateActor to the head, once the constructor's arguments exist
    end    -> KillActor to the head, once it knows the actor

Runs with the runtime's lock held, except where a method says otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from sparkray.protocol import actors as p
from sparkray.protocol import control
from sparkray.protocol.codec import decode_as, encode
from sparkray.protocol.messages import CallFailed, HeadCall, LeaseSpec
from sparkray.runtime.actors import NONE, Actors
from sparkray.runtime.arguments import pack
from sparkray.runtime.context import running
from sparkray.runtime.fetch import Fetcher
from sparkray.runtime.functions import ActorTemplate
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorClient, CreationQueue
from sparkray.runtime.state.objects import INLINE, Entry
from sparkray.runtime.state.scheduling import Task, TemplateState
from sparkray.runtime.submit import Submitter
from sparkray.transport.errors import from_wire

#: Why an actor ends that may take its time for it.
UNNEEDED: Final = "its last handle is gone"


class ActorMaker:
    """Makes the actors of this process."""

    def __init__(
        self,
        shared: Shared,
        ownership: Ownership,
        submitter: Submitter,
        fetcher: Fetcher,
        actors: Actors,
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._submitter = submitter
        self._fetcher = fetcher
        self._actors = actors
        queue = CreationQueue(self._send_creation)
        self._creation_state = TemplateState(0, "actor creation", queue, 0)
        shared.on_actor_unneeded = self._unneeded
        shared.on_actor_unmade = self._unmade

    # --- caller's thread, lock not held ---

    def create(
        self, template: ActorTemplate, args: Any, kwargs: Any
    ) -> tuple[ActorClient | None, ObjectRef | None]:
        """Make an actor; return what is known of it, and the ref that keeps it.

        The ref is None for a detached actor; both are if one of the name existed.

        Raises:
            ValueError: the name is taken.
        """
        shared = self._shared
        class_bytes, class_refs = template.pickled()
        name = f"{template.class_name}.__init__"
        packed = pack(args, kwargs, name, self._fetcher) if args or kwargs else None
        number, object_id = shared.new_object_id()
        entry = Entry(object_id, local=1)
        task = Task(number, self._creation_state, b"", entry, 0)
        ref = ObjectRef(object_id)
        with shared.lock:
            shared.table.entries[object_id] = entry
            self._submitter.tasks[number] = task
            client = self._actors.client(object_id[:-4], template)
            client.task = task
            client.owned = not template.detached
            entry.task = client
            request = self._request(template, object_id[:-4], class_bytes)
            client.unsent = None if template.name else request
            for class_ref in class_refs:
                kept = self._ownership.entry_of(class_ref)
                kept.pins += 1
                client.kept.append(kept)
            if packed is not None:
                self._submitter.hold(task, packed)
            if not template.name and not task.waiting:
                self._send_creation(task)
        kept_by = None if template.detached else ref
        if not template.name:
            return client, kept_by
        if self._create_named(client, task, request):
            return client, kept_by
        return None, None

    def _create_named(
        self, client: ActorClient, task: Task, request: p.CreateActor
    ) -> bool:
        """The head's answer decides: wait for it, and for the arguments before.

        Returns False if an actor of the name existed already.
        """
        arguments = [entry for _, entry in task.refs or ()]
        self._fetcher.await_entries(arguments)
        with self._shared.lock:
            if task.number not in self._submitter.tasks:  # an argument failed
                return True
            request = self._complete(request, task)
        try:
            row: p.ActorRow = self._head_call("CreateActor", request)
        except BaseException:
            with self._shared.lock:
                self._forget(client, task)
            raise
        with self._shared.lock:
            if row.actor_id != client.actor_id:  # get_if_exists found one
                self._forget(client, task)
                return False
            client.known = True
            self._actors.watch(client)
        return True

    def _forget(self, client: ActorClient, task: Task) -> None:
        self._actors.clients.pop(client.actor_id, None)
        client.owned = False
        self._submitter.tasks.pop(task.number, None)
        task.entry.settle(INLINE, NONE)
        self._shared.table.unpin([*(task.pinned or ()), *client.kept])
        self._shared.settle_releases()

    def _request(
        self, template: ActorTemplate, actor_id: bytes, class_bytes: bytes
    ) -> p.CreateActor:
        shared, current = self._shared, running.task
        depth = 0 if current is None else current.depth + 1
        runtime_env = template.runtime_env or shared.runtime_env
        namespace = template.namespace or shared.config.namespace
        strategy = template.strategy
        if template.inherits and current is not None:
            strategy = current.captures or strategy
        creation = p.ActorCreation(
            actor_id=actor_id,
            class_bytes=class_bytes,
            class_name=template.class_name,
            args=b"",
            refs=None,
            stored_args=None,
            owner=shared.address,
            name=template.name,
            namespace=namespace,
            resources=template.resources,
            runtime_env=runtime_env,
            depth=depth,
            max_concurrency=template.max_concurrency,
            groups=template.groups,
            method_groups=template.method_groups,
            handle=template.handle,
            strategy=strategy,
        )
        return p.CreateActor(
            actor_id=actor_id,
            job_id=shared.attached.job_id,
            creator=shared.address,
            name=template.name,
            namespace=namespace,
            get_if_exists=template.get_if_exists,
            detached=template.detached,
            max_restarts=template.max_restarts,
            spec=LeaseSpec(
                job_id=shared.attached.job_id,
                runtime_env=runtime_env,
                resources=template.resources,
                strategy=strategy,
                depth=depth,
                retriable=template.max_restarts != 0,
            ),
            creation=encode(creation),
            handle=template.handle,
        )

    def _complete(self, request: p.CreateActor, task: Task) -> p.CreateActor:
        """Put the arguments, which exist now, into the request."""
        creation = decode_as(p.ActorCreation, request.creation)
        refs = [self._submitter.argument(where, e) for where, e in task.refs or ()]
        stored = None
        if task.stored_args is not None:
            stored = self._submitter.argument(0, task.stored_args)
        values = {name: getattr(creation, name) for name in creation.__struct_fields__}
        values.update(args=task.args, refs=refs or None, stored_args=stored)
        request.creation = encode(p.ActorCreation(**values))
        return request

    def _send_creation(self, task: Task) -> None:
        client: ActorClient | None = task.entry.task
        if client is None or client.unsent is None:  # killed meanwhile, or named
            return
        request, client.unsent = self._complete(client.unsent, task), None
        body = encode(request)
        self._shared.agent.request(
            lambda call: HeadCall(call, "CreateActor", body),
            lambda answer: self._created(client, answer),
        )
        self._actors.watch(client)

    def _created(self, client: ActorClient, answer: Any) -> None:
        """The head took the actor in, or not.  I/O thread, lock not held."""
        with self._shared.lock:
            if isinstance(answer, CallFailed):
                self._actors.bury(client, str(from_wire(answer.error)), b"")
                self._submitter.settle()
                return
            client.known = True
            if client.end_reason:
                self._end(client)

    def _unmade(self, client: ActorClient, error: bytes) -> None:
        """An argument of its constructor failed, and with it the actor."""
        self._actors.bury(client, "an argument of its constructor failed", error)

    def _unneeded(self, client: ActorClient) -> None:
        """No handle and no call is left anywhere: the actor ends."""
        if client.owned:
            client.owned = False
            client.end_reason = UNNEEDED
            self._end(client)

    def _end(self, client: ActorClient) -> None:
        """End an actor; one that the head does not know yet, as soon as it does."""
        if client.unsent is not None:
            self._actors.bury(client, client.end_reason, b"")
        elif client.known:
            gently = client.end_reason == UNNEEDED
            request = p.KillActor(client.actor_id, True, client.end_reason, gently)
            body = encode(request)
            self._shared.agent.request(
                lambda call: HeadCall(call, "KillActor", body), lambda answer: None
            )

    # --- caller's thread, lock not held ---

    def kill(self, client: ActorClient, *, no_restart: bool) -> None:
        """End an actor now: no call of this process gets through afterwards."""
        reason = "sparkray.kill was called"
        with self._shared.lock:
            if client.task is not None and not client.known:
                if no_restart:  # else it is as well: it has not begun
                    client.end_reason = reason  # for the head, once that knows it
                    self._actors.bury(client, reason, b"")
                    self._submitter.settle()
                return
        self._head_call("KillActor", p.KillActor(client.actor_id, no_restart, reason))
        if no_restart:
            with self._shared.lock:
                self._actors.bury(client, reason, b"")
                self._submitter.settle()

    def _head_call(self, method: str, request: Any) -> Any:
        body = encode(request)
        reply = self._shared.agent.call(lambda call: HeadCall(call, method, body), 60.0)
        return decode_as(control.HEAD_CALLS[method][1], reply.body)
