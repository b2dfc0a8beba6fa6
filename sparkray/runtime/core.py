"""The runtime of a process: its parts put together, its life, and its forks.

    connect() -> Runtime -> close()

There is one current runtime in a process at most; it is set here and nowhere else.  A
forked child has none: its first use of sparkray attaches it as a process of its own,
because the threads and sockets of its parent did not come along.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import platform
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sparkray import ids, stacks
from sparkray.exceptions import ClusterError, SparkrayError
from sparkray.protocol import control
from sparkray.protocol.codec import decode_as, encode
from sparkray.protocol.messages import (
    AddBorrower,
    Address,
    Attach,
    Attached,
    CancelObject,
    CopyMade,
    DumpObjects,
    DumpStacks,
    FindModule,
    FlushLogs,
    GetObject,
    HeadCall,
    JobConfig,
    LimitBegun,
    LogLines,
    ModuleFound,
    NodeDied,
    ObjectReady,
    ObjectRow,
    ObjectsDumped,
    RemoveBorrower,
    Retiring,
    StacksDumped,
    StreamItem,
    TaskDone,
    TaskReplied,
    TasksReclaimed,
    YieldLease,
)
from sparkray.runtime.actor_making import ActorMaker
from sparkray.runtime.actors import Actors
from sparkray.runtime.agent_link import AgentLink
from sparkray.runtime.cancel import Canceller
from sparkray.runtime.connection import ConnectOptions
from sparkray.runtime.fetch import Fetcher
from sparkray.runtime.functions import TaskTemplate
from sparkray.runtime.inboxes import Inboxes
from sparkray.runtime.items import Items
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.peers import Peers, remove_socket
from sparkray.runtime.refs import Bequest, ObjectRef, hooks
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import STATE_NAMES, Entry
from sparkray.runtime.state.scheduling import Task
from sparkray.runtime.state.streams import Stream
from sparkray.runtime.submit import Submitter
from sparkray.runtime.waits import Waits
from sparkray.store.segment import WritableSegments
from sparkray.transport import tls
from sparkray.transport.channel import Channel, IOLoop, listen_tcp, listen_unix

log = logging.getLogger(__name__)


class Runtime:
    """One process's part of the cluster.  Made by `connect`; threads may share it."""

    def __init__(self, options: ConnectOptions) -> None:
        self.options = options
        self.closed = False
        self.on_logs: Callable[[LogLines], None] = _print_lines
        self.on_agent_lost: Callable[[str], None] = self._fail_everything
        self.on_agent_message: Callable[[Any], None] = lambda message: None
        self.on_peer_lost: Callable[[Channel], None] = lambda channel: None
        #: Uploads a module that a worker lacks; returns its package, "" for none.
        self.find_module: Callable[[str], str] = lambda name: ""
        self._sought: queue.SimpleQueue[FindModule | None] = queue.SimpleQueue()
        self._seeker: threading.Thread | None = None
        loop = IOLoop("sparkray-io")
        self.shared = shared = Shared(loop, options.settings)
        readopts = options.kind == "udf" and not options.forked_from
        self.ownership = Ownership(
            shared,
            options.forked_from,
            readopts=readopts,
            bequeaths=options.kind != "driver",
        )
        self._segments = WritableSegments()
        waits = Waits(shared)
        self.fetcher = Fetcher(shared, self.ownership, self._segments, waits)
        self.submitter = Submitter(shared, self.ownership, self.fetcher)
        self.fetcher.submitter = self.submitter
        self.items = Items(shared, self.submitter, waits)
        self.inboxes = Inboxes(shared, self.fetcher)
        self.actors = Actors(shared, self.ownership, self.submitter)
        self.actor_maker = ActorMaker(
            shared, self.ownership, self.submitter, self.fetcher, self.actors
        )
        self.canceller = Canceller(shared, self.ownership, self.submitter)
        self.ownership.settle = self.submitter.settle
        self.ownership.copies_lost = self.submitter.recovery.copies_lost
        self.ownership.bring_here = self.submitter.recovery.bring_here
        self.worker_id = options.worker_id or bytes(ids.new_worker_id())
        shared.prefix = self.worker_id
        contexts = tls.contexts() if options.host else None
        shared.peers = Peers(loop, options.token, contexts, self._peer_lost)
        self._abandoned: list[Stream] = []
        self._path = options.socket_path(self.worker_id)
        self._install_handlers()

    def _install_handlers(self) -> None:
        leasing = self.submitter.leasing
        self.shared.peers.handlers.update(
            {
                TaskDone: self.submitter.on_done,
                TaskReplied: self.submitter.on_replied,
                StreamItem: self.submitter.streams.on_items,
                TasksReclaimed: leasing.on_reclaimed,
                YieldLease: leasing.on_yield,
                Retiring: leasing.on_retiring,
                LimitBegun: leasing.limits.on_begun,
                GetObject: self.ownership.on_get,
                ObjectReady: self.ownership.on_ready,
                AddBorrower: self.ownership.on_add,
                RemoveBorrower: self.ownership.on_remove,
                CancelObject: self.canceller.on_cancel_object,
                CopyMade: self.ownership.on_copy,
            }
        )

    def start(self) -> None:
        """Listen, attach to the agent, and become part of the cluster."""
        options, shared = self.options, self.shared
        shared.loop.start()
        sockets = [listen_unix(self._path)]
        port = 0
        if options.host:
            sockets.append(listen_tcp(options.host, *options.ports))
            port = sockets[1].getsockname()[1]
        shared.agent = AgentLink(
            shared.loop,
            options.agent_socket,
            options.token,
            on_message=self._from_agent,
            on_lost=lambda reason: self.on_agent_lost(reason),
        )
        attached: Attached = shared.agent.attach(
            Attach(
                kind=options.kind,
                worker_id=self.worker_id,
                pid=os.getpid(),
                job_id=options.job_id,
                path=self._path,
                host=options.host,
                port=port,
                config=options.config,
                versions=versions(),
            ),
            options.timeout_s,
        )
        shared.attached = self.attached = attached
        shared.address = attached.address
        shared.config = attached.config
        shared.settings = options.settings.with_shared(attached.settings)
        shared.runtime_env = options.runtime_env or attached.config.runtime_env
        shared.peers.introduce(attached.cluster_id, attached.address)
        for sock in sockets:  # only now can a peer's greeting be judged
            shared.peers.listen(sock)

    # --- who and where ---

    @property
    def job_id(self) -> bytes:
        return self.attached.job_id

    @property
    def node_id(self) -> bytes:
        return self.attached.node_id

    @property
    def namespace(self) -> str:
        return self.shared.config.namespace

    @property
    def config(self) -> JobConfig:
        return self.shared.config

    @property
    def address(self) -> Address:
        return self.shared.address

    # --- the public operations ---

    def submit(self, template: TaskTemplate, args: Any, kwargs: Any) -> Any:
        return self.submitter.submit(template, args, kwargs)

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        return self.fetcher.get(refs, timeout_s)

    def wait(
        self, waitables: Sequence[Any], num_returns: int, timeout_s: float | None
    ) -> tuple[list[Any], list[Any]]:
        return self.fetcher.wait(waitables, num_returns, timeout_s)

    def put(self, value: Any) -> ObjectRef:
        return self.fetcher.put(value)

    def head_call(self, method: str, request: Any, timeout_s: float = 30.0) -> Any:
        """Ask the head, through the agent (methods: `control.HEAD_CALLS`)."""
        answer_type = control.HEAD_CALLS[method][1]
        reply = self.shared.agent.call(
            lambda call: HeadCall(call, method, encode(request)), timeout_s
        )
        return decode_as(answer_type, reply.body)

    def cancel(self, ref: ObjectRef, *, force: bool, recursive: bool) -> None:
        self.canceller.cancel(ref, force=force, recursive=recursive)

    # --- what refs need (see `refs.RefSupport`) ---

    def adopt(self, object_id: bytes, owner: Any, *bequest: Any) -> None:
        with self.shared.lock:
            self.ownership.adopt(object_id, owner)
            if bequest:
                self.ownership.inherit(object_id, *bequest)

    def bequest_of(self, ref: ObjectRef) -> Bequest:
        with self.shared.lock:
            return self.ownership.bequest_of(self.ownership.entry_of(ref))

    def share_out_of_band(self, ref: ObjectRef) -> None:
        """A ref was pickled by something else than sparkray: who holds it is unknown.

        The object is kept until the session ends.
        """
        with self.shared.lock:
            entry = self.ownership.entry_of(ref)
            if entry.id not in self._kept_for_ever:
                self._kept_for_ever.add(entry.id)
                entry.pins += 1

    @functools.cached_property
    def _kept_for_ever(self) -> set[bytes]:
        return set()

    def future_of(self, ref: ObjectRef) -> Any:
        return self.fetcher.future_of(ref)

    def next_item(self, stream: Stream, timeout_s: float | None) -> ObjectRef | None:
        return self.items.next(stream, timeout_s)

    async def next_item_async(self, stream: Stream) -> ObjectRef | None:
        return await self.items.next_async(stream)

    def abandon(self, stream: Stream) -> None:
        """A generator's handle went away.  Called from ``__del__``: only notes."""
        self._abandoned.append(stream)
        self.shared.loop.post(self._drop_abandoned)

    def _drop_abandoned(self) -> None:
        with self.shared.lock:
            while self._abandoned:
                stream = self._abandoned.pop()
                stream.abandoned = True
                self.submitter.streams.drop_items(stream)
                self.submitter.streams.note_taken(stream)
            self.shared.settle_releases()

    # --- events ---

    def _from_agent(self, message: Any) -> None:
        if isinstance(message, LogLines):
            self.on_logs(message)
        elif isinstance(message, DumpObjects):
            self.shared.agent.send(ObjectsDumped(message.call, self._object_rows()))
        elif isinstance(message, DumpStacks):
            self.shared.agent.send(StacksDumped(message.call, stacks.of_threads()))
        elif isinstance(message, FindModule):
            self._sought.put(message)
            if self._seeker is None:
                self._seeker = threading.Thread(
                    target=self._find_modules, name="sparkray-modules", daemon=True
                )
                self._seeker.start()
        elif isinstance(message, NodeDied):
            self._node_died(message)
        else:
            self.on_agent_message(message)

    def _find_modules(self) -> None:
        """Answer one after the other: many workers may want the same module."""
        while (message := self._sought.get()) is not None:
            place = ""
            try:
                place = self.find_module(message.name)
            except (SparkrayError, OSError) as error:  # the head or the agent is away
                log.warning("module %r cannot be shipped: %s", message.name, error)
            except Exception:
                log.exception("looking for module %r failed", message.name)
            self.shared.agent.send(ModuleFound(message.call, place))

    def _node_died(self, message: NodeDied) -> None:
        """Channels to a dead host hang: end them, and their tasks go on elsewhere."""
        with self.shared.lock:
            self.submitter.recovery.node_died(message.node_id)
        self.shared.peers.close_node(message.node_id, message.reason)

    def _peer_lost(self, channel: Channel, reason: str) -> None:
        address = channel.peer.address
        self.on_peer_lost(channel)
        with self.shared.lock:
            self.submitter.leasing.worker_lost(channel, reason)
            if address is not None:
                self.ownership.process_lost(address.worker_id, reason)
            self.shared.settle_releases()

    def _fail_everything(self, reason: str) -> None:
        """The agent is gone and with it all that we could do: nothing waits in vain."""
        with self.shared.lock:
            if self.closed:
                return
            self.shared.closed = (
                f"the node agent of this host is gone: {reason}; sparkray.init() joins"
                " or starts another cluster"
            )
            error = ClusterError(self.shared.closed)
            for task in list(self.submitter.tasks.values()):
                self.submitter.fail(task, error)
            self.ownership.fail_pending(error)
            self.submitter.settle()

    def _object_rows(self) -> list[ObjectRow]:
        with self.shared.lock:
            entries = list(self.shared.table.entries.values())
            return [self._row(entry) for entry in entries if entry.owner is None]

    def _row(self, entry: Entry) -> ObjectRow:
        task = entry.task if isinstance(entry.task, Task) else None
        return ObjectRow(
            object_id=entry.id,
            size_bytes=entry.size,
            state=STATE_NAMES[entry.state],
            local_refs=entry.local,
            borrowers=len(entry.borrowers or ()),
            task_pins=entry.pins,
            nodes=[source.node_id for source in entry.sources or ()],
            owner_pid=os.getpid(),
            owner_worker_id=self.worker_id,
            task_name=task.template.name if task else "",
        )

    # --- the end ---

    def flush_logs(self, timeout_s: float) -> None:
        """Print what workers of this node have printed until now, as far as it comes
        in time."""
        with contextlib.suppress(SparkrayError, TimeoutError):
            self.shared.agent.call(FlushLogs, timeout_s)

    def close(self, reason: str = "sparkray.shutdown() was called") -> None:
        """Leave the cluster; everything that still waits gets an error."""
        if self.closed:
            return
        self.on_agent_lost = lambda reason: None  # it is we who leave
        with self.shared.lock:
            self.closed = True
            self.items.close()
            self.shared.closed = f"{reason}; call sparkray.init() first"
            error = SparkrayError(self.shared.closed)
            if hasattr(self.shared, "attached"):
                self.submitter.leasing.return_all()
            for task in list(self.submitter.tasks.values()):
                self.submitter.fail(task, error)
            self.ownership.fail_pending(error)
            self.shared.table.lineage.clear()
        _unset(self)
        self._sought.put(None)
        self.fetcher.close()
        self.shared.peers.leave()
        self.shared.loop.post(self._close_on_loop)
        self.shared.loop.stop()
        self._segments.close()
        remove_socket(self._path)

    def _close_on_loop(self) -> None:
        self.shared.peers.close()
        if hasattr(self.shared, "agent"):
            self.shared.agent.close()


# --- the current runtime ---

_current: Runtime | None = None
_lock = threading.Lock()  #: guards `_current` against two threads that connect at once
_parent: ConnectOptions | None = None  #: in a forked child: how its parent had attached
#: Joins a cluster unasked, where that is the custom (set by `api.session`).
join: Callable[[], None] | None = None
#: Leaves a cluster that this process does not belong to any more (set by `api.session`
#: in processes that go from one to another).
renew: Callable[[], None] | None = None


def connect(
    options: ConnectOptions, prepare: Callable[[Runtime], None] | None = None
) -> Runtime:
    """Attach this process to the cluster and make that its current runtime.

    Args:
        prepare: called with the runtime before it listens (the executor's handlers).

    Raises:
        ConnectionError: no agent there, it does not answer, or the token is wrong.
        SparkrayError: it refuses, or the process has a runtime already.
    """
    global _current
    with _lock:
        if _current is not None:
            raise SparkrayError("this process belongs to a cluster already")
        runtime = Runtime(options)
        if prepare is not None:
            prepare(runtime)
        try:
            runtime.start()
        except BaseException:
            runtime.close("connecting failed")
            raise
        hooks.runtime = runtime
        hooks.dropped = runtime.shared.note_dropped
        _current = runtime
    return runtime


def current_or_none() -> Runtime | None:
    """Return the current runtime; a forked child of a member becomes one here."""
    if renew is not None:
        renew()
    if _current is None and _parent is not None:
        return _attach_child()
    return _current


def current() -> Runtime:
    """Return the current runtime.

    Raises:
        SparkrayError: this process belongs to no cluster.
    """
    if current_or_none() is None and join is not None:
        join()
    runtime = current_or_none()
    if runtime is None:
        raise SparkrayError("this process belongs to no cluster; call sparkray.init()")
    return runtime


hooks.require = current


def _unset(runtime: Runtime) -> None:
    global _current
    if _current is runtime:
        _current = None
    if hooks.runtime is runtime:
        hooks.runtime = None
        hooks.dropped = _forget


def _forget(object_id: bytes) -> None:
    return


def _attach_child() -> Runtime:
    global _parent
    options = _parent
    assert options is not None
    _parent = None
    return connect(options)


def _after_fork_in_child() -> None:
    """Threads, epoll and sockets of the parent are of no use here: start afresh."""
    global _current, _lock, _parent
    runtime, _current, _lock = _current, None, threading.Lock()
    hooks.runtime, hooks.dropped = None, _forget
    if runtime is not None and not runtime.closed and hasattr(runtime, "attached"):
        _parent = replace(
            runtime.options,
            kind="udf",
            job_id=runtime.job_id,
            worker_id=b"",
            config=runtime.config,
            forked_from=os.getppid(),
        )


os.register_at_fork(after_in_child=_after_fork_in_child)


def _close_at_exit() -> None:
    if _current is not None:
        _current.close("the process ends")


atexit.register(_close_at_exit)


def versions() -> dict[str, str]:
    """Return what must agree between the processes of a cluster."""
    from sparkray import __version__

    return {"python": platform.python_version(), "sparkray": __version__}


def _print_lines(message: LogLines) -> None:
    """Show what a worker printed, each line with who printed it."""
    if not message.pid:  # the cluster's own words
        for line in message.lines:
            log.warning("%s", line)
        return
    stream = sys.stderr if message.is_stderr else sys.stdout
    prefix = f"({message.name} pid={message.pid}, {message.host})"
    try:
        stream.write("".join(f"{prefix} {line}\n" for line in message.lines))
        stream.flush()
    except (ValueError, OSError):  # the user closed or redirected it: not our failure
        log.debug("could not print lines of %s", prefix)
