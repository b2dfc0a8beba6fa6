"""Actors, the callers' side: calling them, and learning what became of them.

    call   -> queue of the actor -> its process, over the task channel, in order
    row    -> ALIVE: connect; RESTARTING: calls that were sent go again, or fail;
              DEAD: all fail

Rows are news from the head by way of the agent, asked for with `WatchActor`.  An actor
that is dead is forgotten here; handles and calls that are left keep its `ActorClient`.
Runs with the runtime's lock held, except where a method says otherwise.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final, Protocol

from sparkray.exceptions import ActorUnavailableError, PendingCallsLimitExceeded
from sparkray.protocol import actors as p
from sparkray.protocol.codec import decode_as
from sparkray.protocol.messages import ActorChanged, DefineTask, Lease, WatchActor
from sparkray.runtime.actor_deaths import dead_row, death_of
from sparkray.runtime.context import running
from sparkray.runtime.functions import MethodTemplate
from sparkray.runtime.limits import may_retry, timeout_of
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.actor import ActorClient, ActorQueue
from sparkray.runtime.state.objects import FAILED, INLINE, PENDING, Entry
from sparkray.runtime.state.scheduling import LeasedWorker, Task, TemplateState
from sparkray.runtime.submit import Submitter
from sparkray.store.serialize import serialize
from sparkray.words import counted

log = logging.getLogger(__name__)

#: How long calls wait for word about a process whose channel broke.
UNSURE_S: Final = 15.0
#: How long until another attempt to reach a process that is said to live.
RECONNECT_S: Final = 0.5

NONE: Final = serialize(None).to_bytes()


class HandleData(Protocol):
    """What a handle tells of its actor's class."""

    @property
    def class_name(self) -> str: ...
    @property
    def max_pending(self) -> int: ...
    @property
    def in_order(self) -> bool: ...


class _Making:
    """Tells of an actor of another process that could not be made: the head never
    hears of one whose constructor's arguments failed."""

    __slots__ = ("actors", "client")

    def __init__(self, actors: Actors, client: ActorClient) -> None:
        self.actors, self.client = actors, client

    def notify(self, entry: Entry) -> None:
        if entry.state == FAILED and self.client.row is None:
            self.actors.bury(self.client, "it could not be made", entry.value)


class Actors:
    """All actors that this process has to do with."""

    def __init__(
        self, shared: Shared, ownership: Ownership, submitter: Submitter
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._submitter = submitter
        self.clients: dict[bytes, ActorClient] = {}  #: of actors that are not dead
        shared.on_actor_lost = self.connection_lost

    # --- calling: caller's thread, lock not held ---

    def client_of(
        self, actor_id: bytes, template: HandleData, ref: ObjectRef | None
    ) -> ActorClient:
        """Return what we know of an actor, for a handle that came from elsewhere."""
        with self._shared.lock:
            client = self.client(actor_id, template)
            if ref is not None:
                self._follow(client, self._ownership.entry_of(ref))
            self.watch(client)
        return client

    def client(self, actor_id: bytes, template: HandleData) -> ActorClient:
        client = self.clients.get(actor_id)
        if client is None:
            client = self.clients[actor_id] = ActorClient(
                actor_id,
                template.class_name,
                in_order=template.in_order,
                max_pending=template.max_pending,
            )
        return client

    def _follow(self, client: ActorClient, creation: Entry) -> None:
        """Learn from its creator if the actor cannot be made."""
        if creation.state == FAILED:
            _Making(self, client).notify(creation)
        if creation.owner is None or creation.state != PENDING:
            return
        if creation.waiters is None:
            creation.waiters = []
        creation.waiters.append(_Making(self, client))
        self._ownership.ask_owner(creation)
        self._submitter.settle()

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
                f"{counted(client.max_pending, 'call')} of {client.describe()} not done"
                " yet: wait for some of them first"
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
                timeout_s=method.timeout_s,
            )
            client.states[method, depth] = state
        return state

    # --- news ---

    def watch(self, client: ActorClient) -> None:
        """Ask for news, unless that is done already."""
        dead = client.row is not None and client.row.state == p.DEAD
        if client.watching or dead or client.unsent is not None:
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
                self.watch(client)
                self._submitter.settle()

    def _apply(self, client: ActorClient, row: p.ActorRow) -> None:
        client.row = row
        if row.state == p.DEAD:
            self.bury(client, row.reason, row.error)
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
        task.entry.settle(INLINE, NONE)

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
            if may_retry(task):
                task.retries_left -= 1
                task.attempt += 1
                task.overran = ""
                again.append(task)
            elif task.overran:
                self._submitter.fail(task, timeout_of(task))
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

    def bury(self, client: ActorClient, reason: str, error: bytes) -> None:
        """The actor is dead: all its calls fail, now and later."""
        row = client.row
        if row is None or row.state != p.DEAD:
            row = client.row = dead_row(client, reason, error)
        client.owned, client.unsent = False, None
        self.clients.pop(client.actor_id, None)
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
        error = serialize(death_of(client, row)).to_bytes()
        for task in tasks:
            if task.overran:
                self._submitter.fail(task, timeout_of(task))
            else:
                self._submitter.fail_with(task, error)
