"""`init` and `shutdown`: the life of this process's connection to a cluster.

A session is a runtime, joined through the agent of this host, and for a private
cluster the node daemon that was started for it.  Workers have a runtime without a
session: there `init` and `shutdown` change nothing.
"""

from __future__ import annotations

import atexit
import html
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from sparkray.api import console, join, modules, packages, udf
from sparkray.api import runtime_env as runtime_env_
from sparkray.api.arguments import (
    InitArguments,
    check_switches,
    check_token,
    names_checked,
)
from sparkray.config import Settings, unknown_variables
from sparkray.launch import process
from sparkray.launch.discovery import Node
from sparkray.protocol.messages import JobConfig
from sparkray.runtime import core, refs
from sparkray.runtime.connection import ConnectOptions
from sparkray.runtime.interrupts import InterruptShield

_log = logging.getLogger("sparkray")
#: Modules that are worth importing before workers are forked, if the driver has them.
_PRELOAD = ("pandas", "pyarrow", "scipy", "sklearn", "torch")
#: How long the last lines of tasks may keep a driver from ending.
_FLUSH_LOGS_S: Final = 1.0
#: Stands for a SparkSession among the arguments of `init`.
_ON_SPARK = "a SparkSession"


class Context(Mapping[str, Any]):
    """Where this process is connected to.  A mapping, and a context manager that calls
    `shutdown` at its end.

    Attributes:
        address: ``host:port`` of the head: pass it to `init` elsewhere.
        node_id, job_id: in hexadecimal.
        namespace: the job's.
        session_dir: files of this host's node, logs among them.
        dashboard_url: None where no dashboard runs.
    """

    def __init__(self, runtime: core.Runtime) -> None:
        attached = runtime.attached
        self.address = attached.head
        self.node_id = attached.node_id.hex()
        self.job_id = attached.job_id.hex()
        self.namespace = attached.config.namespace
        self.session_dir = attached.session_dir
        self.dashboard_url: str | None = None

    def __getitem__(self, key: str) -> Any:
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def disconnect(self) -> None:
        """Same as `shutdown`."""
        shutdown()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_error: object) -> None:
        shutdown()

    def __repr__(self) -> str:
        return f"Context({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def _repr_html_(self) -> str:
        rows = {
            "Cluster": self.address,
            "Dashboard": self.dashboard_url,
            "Namespace": self.namespace,
            "Session": self.session_dir,
            "Python": ".".join(map(str, sys.version_info[:3])),
        }
        cells = (
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in rows.items()
            if value
        )
        return f"<table><caption>sparkray</caption>{''.join(cells)}</table>"


class _Started(Protocol):
    """A cluster that ends with this session: a node's process, or nodes on Spark."""

    node: Node

    def stop(self) -> object: ...
    def let_go(self) -> None: ...


@dataclass
class _Session:
    """What `init` made in this process, for `shutdown` to undo."""

    runtime: core.Runtime
    context: Context
    arguments: InitArguments
    started: _Started | None
    shield: InterruptShield
    membership: udf.Membership | None = None  #: of a UDF, where its Spark task belongs
    spark: Any = None  #: the session of Spark whose tasks were told of this one


@dataclass(frozen=True)
class _Target:
    """Where a session connects to."""

    node: Node
    why: str  #: for the log
    started: _Started | None = None
    kind: str = "driver"
    job_id: bytes = b""  #: of a UDF: the job that it belongs to


class _State:
    """The session of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  #: guards `session`; held while that changes
        self.session: _Session | None = None
        self.has_warned = False  #: of variables that nobody knows

    def reset_after_fork(self) -> None:
        """A child has no session, and must not keep its parent's cluster alive."""
        session, self.session, self.lock = self.session, None, threading.RLock()
        if session is not None and session.started is not None:
            session.started.let_go()


_state = _State()
os.register_at_fork(after_in_child=_state.reset_after_fork)


def _spark_only() -> frozenset[str]:
    from sparkray.spark import own_options

    return own_options()


@names_checked(_spark_only)
def init(
    address: Any = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    log_to_driver: bool = True,
    ignore_reinit_error: bool = False,
    logging_level: int | str = logging.INFO,
    token: str | None = None,
) -> Context:
    """Join a running cluster, or start a private one on this host.

    Called again it returns the context that is there; where the cluster has ended
    meanwhile it begins anew.  In tasks, and in UDFs that have joined, it changes
    nothing.

    Args:
        address: ``host:port`` of a cluster with a node on this host; ``"auto"``: the
            one that runs here; ``"local"``: a new one; a `SparkSession`: the cluster of
            that application, started if need be.  Default: the variable
            ``SPARKRAY_ADDRESS``, else a cluster that `sparkray start` runs on this
            host, else a new one.
        num_cpus, num_gpus, resources, labels: what a new cluster has.
        object_store_memory: bytes of its object store.
        namespace: where names of actors are looked up; default: one of its own.
        runtime_env: for all tasks of this job: a dict of ``env_vars``, ``working_dir``,
            ``py_modules``, ``excludes``, ``pip``, ``worker_process_setup_hook`` and
            ``config``.
        log_to_driver: whether to print here what tasks print.
        ignore_reinit_error: return the running session's context even when other
            arguments are given than it was made with.
        logging_level: of sparkray's own messages.
        token: the cluster's secret, where the environment does not give it.

    Raises:
        ConnectionError: the cluster asked for cannot be joined; nothing was started.
        RuntimeError: a session with other arguments is running.
        ClusterError: a private cluster did not start.
        TypeError, ValueError: a wrong argument, or a stopped Spark session.
    """
    spark = address if _is_spark_session(address) else None
    arguments = InitArguments(
        address=address if spark is None else _ON_SPARK,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        object_store_memory=object_store_memory,
        labels=labels,
        namespace=namespace,
        runtime_env=runtime_env,
    )
    arguments.check()
    check_switches(log_to_driver=log_to_driver, ignore_reinit_error=ignore_reinit_error)
    check_token(token)
    with _state.lock:
        _leave_lost_cluster()
        runtime = core.current_or_none()
        if runtime is not None:
            return _existing(runtime, arguments, ignore_reinit_error)
        console.show_messages(logging_level)
        if not _state.has_warned and (text := unknown_variables(os.environ)):
            _state.has_warned = True
            _log.warning("%s", text)
        env, shipped = packages.pack(runtime_env_.normalize(runtime_env))
        on_spark = spark is not None or udf.task() is not None
        path = modules.own_path() if on_spark else sys.path
        config = _job_config(arguments, env, log_to_driver, path)
        try:
            return _begin(arguments, spark, config, shipped, token)
        finally:
            packages.close(shipped)


def shutdown() -> None:
    """Leave the cluster; end it if `init` started it.  Harmless when there is none.

    Tasks of this job are stopped, its objects freed.  In a task it does nothing.
    """
    with _state.lock:
        session, _state.session = _state.session, None
        if session is None:
            return
        try:
            if session.runtime.attached.config.log_to_driver:
                session.runtime.flush_logs(_FLUSH_LOGS_S)
        finally:  # Ctrl-C comes here, too
            try:
                udf.untell_spark(session.spark)
                session.runtime.close()
                session.shield.remove()
            finally:
                if session.started is not None:
                    session.started.stop()


def is_initialized() -> bool:
    """Tell whether this process is connected to a cluster."""
    runtime = core.current_or_none()
    return runtime is not None and not _is_lost(runtime)


def has_left() -> bool:
    """Tell whether this process is in no cluster, and what it has kept of an ended
    session is no reason to join one.  In a UDF it is: it may be of the same job."""
    return core.current_or_none() is None and udf.task() is None


def ensure_runtime() -> core.Runtime:
    """Return this process's runtime; the first use makes a session."""
    runtime = core.current_or_none()
    if runtime is None:
        init()
        runtime = core.current()
    if _state.session is not None:
        _state.session.shield.ready()
    return runtime


def load_ref(object_id: bytes, *owner: Any) -> refs.ObjectRef:
    """Unpickle a ref of a UDF's closure: there it may be the first use of sparkray."""
    core.current_or_none()
    return refs.load_ref(object_id, *owner)


def _join_in_udf() -> None:
    if udf.task() is not None:
        init()


def _renew_in_udf() -> None:
    """Leave what the Spark task of this process does not belong to, or what ended."""
    session = _state.session
    if session is None or session.membership is None:
        return
    runtime = session.runtime
    if runtime.shared.loop.on_thread:
        return
    if not _is_lost(runtime) and not session.membership.is_outdated():
        return
    with _state.lock:
        if _state.session is session:
            shutdown()


core.join = _join_in_udf
refs.hooks.load_out_of_band = load_ref


def inherited_env(runtime: core.Runtime) -> str:
    """Return the runtime environment that tasks submitted here inherit."""
    return runtime.shared.runtime_env


def _is_lost(runtime: core.Runtime) -> bool:
    """Tell whether the node that this process had joined has ended."""
    return bool(runtime.shared.closed)


def _leave_lost_cluster() -> None:
    """A session outlives its cluster: let go of it, so that another can begin."""
    runtime, session = core.current_or_none(), _state.session
    if runtime is not None and session is not None and _is_lost(runtime):
        _log.warning(
            "the cluster %s has ended, and with it what it held: %s",
            session.context.address,
            runtime.shared.closed,
        )
        shutdown()


def _existing(
    runtime: core.Runtime, arguments: InitArguments, ignore_reinit_error: bool
) -> Context:
    session = _state.session
    if session is None:  # a worker's runtime
        return Context(runtime)
    if arguments.address in _spellings(session):
        arguments = replace(arguments, address=None)
    membership = session.membership
    if membership is not None and membership.told.job and arguments.address is None:
        return session.context
    differences = arguments.differences(session.arguments)
    if differences and not ignore_reinit_error:
        raise RuntimeError(
            "a session with other arguments is running: asked for"
            f" {', '.join(differences)}; call shutdown() first, or pass"
            " ignore_reinit_error=True to keep the running one"
        )
    return session.context


def _spellings(session: _Session) -> tuple[str, str]:
    """Return the ways to name the running session's cluster as an address."""
    return session.context.address, "auto" if session.started is None else "local"


def _begin(
    arguments: InitArguments,
    spark: Any,
    config: JobConfig,
    shipped: list[packages.Package],
    token: str | None,
) -> Context:
    began_s = time.monotonic()
    target = _target(arguments, spark, token)
    started = target.started
    try:
        warnings = [*target.node.warnings, *join.version_warnings(target.node)]
        runtime = core.connect(_connect_options(target, config))
    except BaseException:
        if started is not None:
            started.stop()
        raise
    shield = InterruptShield(runtime.shared.loop)
    shield.ready()
    session = _Session(runtime, Context(runtime), arguments, started, shield)
    if target.kind == "udf":
        session.membership = udf.Membership()
        core.renew = _renew_in_udf
    _state.session = session
    atexit.unregister(shutdown)
    atexit.register(shutdown)
    modules.serve(runtime)
    _ship(runtime, shipped)
    if spark is not None:
        _complete_on_spark(session)
    elif target.kind == "driver" and started is None:
        context = session.context
        session.spark = udf.tell_spark(context.address, context.job_id)
    _log.info(
        "%s cluster %s (%s) in %.2f s",
        "joined" if started is None else "started",
        session.context.address,
        target.why,
        time.monotonic() - began_s,
    )
    for warning in warnings:
        _log.warning("%s", warning)
    return session.context


def _connect_options(target: _Target, config: JobConfig) -> ConnectOptions:
    node, settings = target.node, Settings.from_environment()
    return ConnectOptions(
        agent_socket=node.agent_socket,
        token=node.token(),
        kind=target.kind,
        config=config,
        job_id=target.job_id,
        host="" if node.local else node.host,
        ports=(settings.worker_port_min, settings.worker_port_max),
        timeout_s=settings.start_timeout_s,
        settings=settings,
    )


def _target(arguments: InitArguments, spark: Any, token: str | None) -> _Target:
    if spark is not None:
        return _start_on_spark(arguments, spark, token)
    if udf.task() is not None:
        node, job_id = udf.find(arguments.address)
        return _Target(node, "this executor's", None, "udf", job_id)
    choice = join.choose(arguments.address, own_resources=arguments.own_resources())
    if isinstance(choice, join.Join):
        return _Target(choice.node, choice.why)
    started = process.start_node(
        process.NodeOptions(
            head=True,
            local=True,
            host="127.0.0.1",
            num_cpus=arguments.num_cpus,
            resources=arguments.node_resources(),
            object_store_memory=arguments.object_store_memory,
            labels=arguments.labels,
            environment={} if token is None else {"SPARKRAY_TOKEN": token},
        )
    )
    return _Target(started.node, f"private, {choice.why}", started)


def _start_on_spark(arguments: InitArguments, spark: Any, token: str | None) -> _Target:
    from sparkray.spark.session import start_on_spark

    started = start_on_spark(
        spark,
        num_cpus=arguments.num_cpus,
        resources=arguments.node_resources(),
        object_store_memory=arguments.object_store_memory,
        token=token,
    )
    return _Target(started.node, "on Spark", started)


def _ship(runtime: core.Runtime, shipped: list[packages.Package]) -> None:
    """Upload what the job's environment needs; the agent waits for it meanwhile."""
    try:
        packages.upload(runtime, shipped)
    except BaseException:
        shutdown()
        raise


def _complete_on_spark(session: _Session) -> None:
    """Wait for the executors' nodes, now that they can be counted."""
    try:
        session.started.wait_for_nodes(  # type: ignore[union-attr]
            session.context.job_id, session.runtime.head_call
        )
    except BaseException:
        shutdown()
        raise


def _job_config(
    arguments: InitArguments, env: str, log_to_driver: bool, path: Sequence[str]
) -> JobConfig:
    return JobConfig(
        namespace=arguments.namespace or f"anonymous-{uuid.uuid4()}",
        sys_path=list(dict.fromkeys(os.path.abspath(place) for place in path)),
        runtime_env=env,
        log_to_driver=log_to_driver,
        entrypoint=os.path.basename(sys.argv[0]) if sys.argv else "",
        preload=[name for name in _PRELOAD if name in sys.modules],
    )


def _is_spark_session(value: object) -> bool:
    """Tell by its looks, so that pyspark is never loaded for it."""
    return hasattr(value, "sparkContext") or type(value).__module__.startswith(
        "pyspark.sql."
    )
