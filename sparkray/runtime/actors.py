"""Actors, the callers' side: making them, calling them, learning what became of them.

    create -> CreateActor to the head; the row that the agent tells says where it is
    call   -> queue of the actor -> its process, over the task channel, in order
    row    -> ALIVE: connect; RESTARTING: calls that were sent go again, or fail;
              DEAD: all fail

Rows are news from the head by way of the agent, asked for with `WatchActor`.  Runs with
the runtime's lock held, except where a method says otherwise.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final, Protocol

from sparkray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    PendingCallsLimitExceeded,
    TaskError,
)
from sparkray.protocol import actors as p
from sparkray.protocol import control
from sparkray.protocol.codec import decode_as, encode
from sparkray.protocol.messages import (
    ActorChanged,
    CallFailed,
    DefineTask,
    HeadCall,
    Lease,
    LeaseSpec,
    WatchActor,
    WireError,
)
from sparkray.runtime.arguments import pack
from sparkray.runtime.context import running
from sparkray.runtime.fetch import Fetcher
from sparkray.runtime.functions import ActorTemplate, MethodTemplate
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorClient, ActorQueue, CreationQueue
from sparkray.runtime.state.objects import INLINE, Entry
from sparkray.runtime.state.scheduling import LeasedWorker, Task, TemplateState
from sparkray.runtime.submit import Submitter
from sparkray.store.serialize import deserialize, serialize
from sparkray.transport.errors import from_wire

log = logging.getLogger(__name__)

#: How long calls wait for word about a process whose channel broke.
UNSURE_S: Final = 15.0
#: How long until another attempt to reach a process that is said to live.
RECONNECT_S: Final = 0.5

_NONE: Final = serialize(None).to_bytes()


class HandleData(Protocol):
    """What a handle tells of its actor's class."""

    @property
    def class_name(self) -> str: ...
    @property
    def max_pending(self) -> int: ...
    @property
    def in_order(self) -> bool: ...


class Actors:
    """All actors that this process has to do with."""

    def __init__(
        self,
        shared: Shared,
        ownership: Ownership,
        submitter: Submitter,
        fetcher: Fetcher,
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._submitter = submitter
        self._fetcher = fetcher
        self._clients: dict[bytes, ActorClient] = {}
        self._creations: dict[int, p.CreateActor] = {}
        queue = CreationQueue(self._send_creation)
        self._creation_state = TemplateState(0, "actor creation", queue, 0)
        shared.on_actor_unneeded = self._unneeded
        shared.on_actor_lost = self.connection_lost
        shared.on_actor_unmade = self._unmade

    # --- making: caller's thread, lock not held ---

    def create(
        self, template: ActorTemplate, args: Any, kwargs: Any
    ) -> tuple[bytes, ObjectRef | None, bytes]:
        """Make an actor; return its id, the ref that keeps it, and its handle's data.

        The ref is None for a detached actor, and for one that existed already.

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
            client = self._client(object_id[:-4], template)
            client.task = task
            client.creation = entry
            client.owned = not template.detached
            entry.task = client
            if packed is not None:
                self._submitter.hold(task, packed)
            for class_ref in class_refs:
                kept = self._ownership.entry_of(class_ref)
                kept.pins += 1
                client.kept.append(kept)
            request = self._request(template, object_id[:-4], class_bytes)
            self._creations[number] = request
            if not template.name:
                if not task.waiting:
                    self._send_creation(task)
                self._watch(client)
        if template.name:
            return self._create_named(client, task, request, ref)
        return object_id[:-4], ref, template.handle

    def _create_named(
        self, client: ActorClient, task: Task, request: p.CreateActor, ref: ObjectRef
    ) -> tuple[bytes, ObjectRef | None, bytes]:
        """The head's answer decides: wait for it, and for the arguments before."""
        arguments = [entry for _, entry in task.refs or ()]
        self._fetcher.await_entries(arguments)
        with self._shared.lock:
            self._creations.pop(task.number, None)
            if task.number not in self._submitter.tasks:  # an argument failed
                return client.actor_id, None if request.detached else ref, b"-"
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
                return row.actor_id, None, b""
            self._watch(client)
        return client.actor_id, None if request.detached else ref, request.handle

    def _forget(self, client: ActorClient, task: Task) -> None:
        self._clients.pop(client.actor_id, None)
        client.owned = False
        self._submitter.tasks.pop(task.number, None)
        task.entry.settle(INLINE, _NONE)
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
        request = self._complete(self._creations.pop(task.number), task)
        body = encode(request)
        client = self._clients[request.actor_id]
        self._shared.agent.request(
            lambda call: HeadCall(call, "CreateActor", body),
            lambda answer: self._created(client, answer),
        )

    def _created(self, client: ActorClient, answer: Any) -> None:
        """The head took the actor in, or not.  I/O thread, lock not held."""
        if isinstance(answer, CallFailed):
            with self._shared.lock:
                self._bury(client, str(from_wire(answer.error)), b"")
                self._submitter.settle()

    def _unmade(self, client: ActorClient, error: bytes) -> None:
        """An argument of its constructor failed, and with it the actor."""
        if client.task is not None:
            self._creations.pop(client.task.number, None)
        self._bury(client, "an argument of its constructor failed", error)

    def _unneeded(self, client: ActorClient) -> None:
        """No handle and no call is left anywhere: the actor ends."""
        if client.owned:
            client.owned = False
            self._kill_soon(client.actor_id, "its last handle is gone")

    def _kill_soon(self, actor_id: bytes, reason: str) -> None:
        body = encode(p.KillActor(actor_id, True, reason))
        self._shared.agent.request(
            lambda call: HeadCall(call, "KillActor", body), lambda answer: None
        )

    def kill(self, actor_id: bytes, *, no_restart: bool) -> None:
        """End an actor now.  Lock not held."""
        request = p.KillActor(actor_id, no_restart, "sparkray.kill was called")
        self._head_call("KillActor", request)

    def _head_call(self, method: str, request: Any) -> Any:
        body = encode(request)
        reply = self._shared.agent.call(lambda call: HeadCall(call, method, body), 60.0)
        return decode_as(control.HEAD_CALLS[method][1], reply.body)

    # --- calling: caller's thread, lock not held ---

    def client_of(
        self, actor_id: bytes, template: HandleData, ref: ObjectRef | None
    ) -> ActorClient:
        """Return what we know of an actor, for a handle that came from elsewhere."""
        with self._shared.lock:
            client = self._client(actor_id, template)
            if ref is not None and client.creation is None:
                client.creation = self._ownership.entry_of(ref)
            self._watch(client)
        return client

    def _client(self, actor_id: bytes, template: HandleData) -> ActorClient:
        client = self._clients.get(actor_id)
        if client is None:
            client = self._clients[actor_id] = ActorClient(
                actor_id,
                template.class_name,
                in_order=template.in_order,
                max_pending=template.max_pending,
            )
        return client

    def call(
        self,
        client: ActorClient,
        method: MethodTemplate,
        ref: ObjectRef | None,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Submit one call of a method.

        Raises:
            PendingCallsLimitExceeded: ``max_pending_calls`` of them wait already.
        """
        current = running.task
        depth = 0 if current is None else current.depth + 1
        state = client.states.get((method, depth))
        if state is None:
            state = self._method_state(client, method, depth)
        if 0 <= client.max_pending <= client.queue.pending():
            raise PendingCallsLimitExceeded(
                f"{client.max_pending} calls of {client.describe()} wait already;"
                " wait for some of them first"
            )
        pin = None
        if ref is not None:
            with self._shared.lock:
                pin = self._shared.table.entries.get(ref._id)
                if pin is not None:
                    pin.pins += 1
        result = self._submitter.start(state, current, args, kwargs, pin)
        row = client.row
        if row is not None and row.state == p.DEAD:
            with self._shared.lock:
                self._fail_calls(client, list(client.queue.queue), row)
                client.queue.queue.clear()
                self._submitter.settle()
        return result

    def _method_state(
        self, client: ActorClient, method: MethodTemplate, depth: int
    ) -> TemplateState:
        with self._shared.lock:
            templates = self._submitter.templates
            number = templates.new_number()
            state = TemplateState(number, method.name, client.queue, depth)
            state.num_returns = method.num_returns
            state.max_retries = method.max_retries
            state.retry_exceptions = method.retry_exceptions
            state.define = DefineTask(
                template=number,
                function_hash=b"",
                function=None,
                name=method.name,
                num_returns=method.num_returns,
                resources={},
                runtime_env="",
                max_calls=0,
                batch=True,
                backpressure=method.backpressure,
                depth=depth,
                method=method.method,
                group=method.group,
            )
            client.states[method, depth] = state
        return state

    # --- news ---

    def _watch(self, client: ActorClient) -> None:
        if client.watching or (client.row is not None and client.row.state == p.DEAD):
            return
        client.watching = True
        version = client.row.version if client.row is not None else 0
        self._shared.agent.request(
            lambda call: WatchActor(call, client.actor_id, version),
            lambda answer: self._changed(client, answer),
        )

    def _changed(self, client: ActorClient, answer: Any) -> None:
        """The agent tells the actor's new row.  I/O thread, lock not held."""
        with self._shared.lock:
            client.watching = False
            if isinstance(answer, ActorChanged):
                self._apply(client, decode_as(p.ActorRow, answer.row))
                self._watch(client)
                self._submitter.settle()

    def _apply(self, client: ActorClient, row: p.ActorRow) -> None:
        client.row = row
        if row.state == p.DEAD:
            self._bury(client, row.reason, row.error)
            return
        self._leave_former(client, row)
        self._resolve_unsure(client, row)
        if row.state == p.ALIVE and row.address is not None:
            self._came_up(client)
            self._connect(client, row)

    def _came_up(self, client: ActorClient) -> None:
        task, client.task = client.task, None
        if task is None:
            return
        self._submitter.tasks.pop(task.number, None)
        client.kept += task.pinned or []
        task.entry.settle(INLINE, _NONE)

    def _connect(self, client: ActorClient, row: p.ActorRow) -> None:
        assert row.address is not None
        for worker in client.queue.workers:
            if worker.lease.worker == row.address:
                return
        try:
            channel = self._shared.peers.connect(row.address)
        except OSError as error:
            log.debug("no way to actor %s: %s", client.describe(), error)
            self._look_again(client, row, RECONNECT_S)
            return
        lease = Lease(b"", row.address, [])
        worker = LeasedWorker(lease, client.queue, channel, time.monotonic())
        channel.peer.leased = worker
        client.queue.workers = [worker]
        self._submitter.dispatch(client.queue)

    def connection_lost(self, worker: LeasedWorker) -> None:
        """The actor's process is gone, or out of reach: the head knows which."""
        assert isinstance(worker.key, ActorQueue)
        client = worker.key.client
        if worker in client.queue.workers:
            client.queue.workers.remove(worker)
        client.unsure += worker.in_flight.values()
        worker.in_flight.clear()
        row = client.row
        if row is None or row.state == p.DEAD:
            return
        if row.address == worker.lease.worker:
            self._look_again(client, row, UNSURE_S if client.unsure else RECONNECT_S)
        else:  # the news came first
            self._resolve_unsure(client, row)

    def _leave_former(self, client: ActorClient, row: p.ActorRow) -> None:
        """The actor lives again elsewhere: what its former process had is lost.

        Only then: while it restarts, last answers may be on their way still.
        """
        if row.state != p.ALIVE:
            return
        for worker in list(client.queue.workers):
            if worker.lease.worker != row.address:
                client.queue.workers.remove(worker)
                client.unsure += worker.in_flight.values()
                worker.in_flight.clear()
                worker.channel.peer.leased = None

    def _resolve_unsure(self, client: ActorClient, row: p.ActorRow) -> None:
        """Calls that were sent to an earlier incarnation: again, or failed."""
        if not client.unsure:
            return
        unsure, client.unsure = client.unsure, []
        again: list[Task] = []
        for task in unsure:
            if task.retries_left and not task.cancelled:
                task.retries_left -= 1
                task.attempt += 1
                again.append(task)
            else:
                error = ActorUnavailableError(
                    f"{client.describe()} ended while it ran {task.template.name}"
                    f" ({row.reason}); it is being restarted"
                )
                self._submitter.fail(task, error)
        client.queue.put_back(again)
        self._submitter.dispatch(client.queue)

    def _look_again(self, client: ActorClient, row: p.ActorRow, pause_s: float) -> None:
        incarnation = row.incarnation
        self._shared.loop.call_later(
            pause_s, lambda: self._stop_waiting(client, incarnation)
        )

    def _stop_waiting(self, client: ActorClient, incarnation: int) -> None:
        """No news about a broken channel: the actor lives, but out of reach."""
        with self._shared.lock:
            row = client.row
            if row is None or row.incarnation != incarnation or client.queue.workers:
                return
            if self._shared.closed:
                return
            self._resolve_unsure(client, row)
            if row.state == p.ALIVE:
                self._connect(client, row)
            self._submitter.settle()

    def _bury(self, client: ActorClient, reason: str, error: bytes) -> None:
        """The actor is dead: all its calls fail, now and later."""
        row = client.row
        if row is None or row.state != p.DEAD:
            row = client.row = _dead_row(client, reason, error)
        client.owned = False
        tasks = [*client.unsure, *client.queue.queue]
        for worker in client.queue.workers:
            tasks += worker.in_flight.values()
            worker.in_flight.clear()
            worker.channel.peer.leased = None
        client.unsure, client.queue.workers = [], []
        client.queue.queue.clear()
        if client.task is not None:
            tasks.append(client.task)
            client.task = None
        self._fail_calls(client, tasks, row)
        kept, client.kept = client.kept, []
        self._shared.table.unpin(kept)

    def _fail_calls(
        self, client: ActorClient, tasks: list[Task], row: p.ActorRow
    ) -> None:
        if not tasks:
            return
        error = serialize(_death(client, row)).to_bytes()
        for task in tasks:
            self._submitter.fail_with(task, error)


def _death(client: ActorClient, row: p.ActorRow) -> BaseException:
    """Return the error of calls to a dead actor."""
    text = f"{client.describe()} has ended: {row.reason}"
    if row.error[:1] == b"\x80":
        try:
            cause = deserialize(row.error)
        except Exception:  # its class is unknown here, or fails to unpickle
            return ActorDiedError(text)
        text = f"{client.describe()} could not be made: {cause}"
        if isinstance(cause, TaskError):
            return ActorDiedError(text, cause.cause).as_user_error()
        return ActorDiedError(text, cause)
    if row.error:
        return from_wire(decode_as(WireError, row.error))
    return ActorDiedError(text)


def _dead_row(client: ActorClient, reason: str, error: bytes) -> p.ActorRow:
    return p.ActorRow(
        actor_id=client.actor_id,
        version=1 << 40,
        state=p.DEAD,
        incarnation=0,
        address=None,
        reason=reason,
        error=error,
        name="",
        namespace="",
        class_name=client.class_name,
        detached=False,
        job_id=b"",
    )
