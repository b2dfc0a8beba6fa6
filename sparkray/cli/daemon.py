"""One node as a process: its agent and, with ``--head``, the cluster's head.

The head of a cluster is a child of its own, which is started again if it dies.  With
``--local`` head and agent share this process, and its loop and gRPC port.

    python -m sparkray.cli.daemon --head --num-cpus 4
    python -m sparkray.cli.daemon --address 10.0.0.1:6379

The only module that knows both head and agent, which talk through a gRPC port wherever
they run.  It makes the session directory, finds or makes
the token, tells who started it when the node is ready, and ends the node in good order
on a signal, on the end of its owner, or when the head says so.

With ``--patient`` a node outlives the absence of its head: it waits for one that is not
there yet, and starts anew with one that took the place of the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import importlib
import json
import logging
import os
import platform
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import sparkray
from sparkray import ids
from sparkray.agent.host import gpu_ids
from sparkray.agent.options import AgentOptions
from sparkray.agent.service import AgentService
from sparkray.cli import log_files, waiting
from sparkray.cli.head_process import HeadOptions, HeadProcess
from sparkray.cli.starter import Starter, first, unless
from sparkray.config import Settings
from sparkray.exceptions import ProtocolError
from sparkray.launch import session_dir
from sparkray.protocol import control
from sparkray.transport import auth, tls

if TYPE_CHECKING:
    from sparkray.head.service import HeadService
    from sparkray.transport.client import Peer

_log = logging.getLogger(__name__)
#: How long the parts of a node may take over their orderly end.
STOP_TIMEOUT_S = 10.0
#: How often a node that waits for its head says so.
SAY_S = 60.0
#: Between attempts to reach a head that is not there yet: first and longest pause.
RETRY_S = (0.1, 1.0)
_TAKEN = (
    "choose another by --port (0: any that is free); `sparkray status` tells of a"
    " cluster that runs on this host"
)


class Node:
    """Everything that one daemon runs.  `start`, then `finished`, then `stop`."""

    def __init__(
        self, given: argparse.Namespace, settings: Settings, root: Path, token: bytes
    ) -> None:
        self._given = given
        self._settings = settings
        self._root = root
        self._token = token
        self._tls = tls.from_environment()
        self._node_id = ids.new_node_id()
        self._session: session_dir.SessionDir | None = None
        self._agent: AgentService | None = None
        self._head: HeadService | HeadProcess | None = None
        self._server: Any = None
        self._peer: Peer | None = None
        self._cluster_id = b""
        self._waiting: waiting.WaitingFile | None = None
        self._told: dict[str, Any] = {}  #: what the discovery file says

    async def start_in_time(
        self, tell: Callable[[Mapping[str, Any]], None]
    ) -> dict[str, Any]:
        """Start, within ``start_timeout_s`` once there is a head; see `start`.

        Args:
            tell: told at once that a patient node waits for its head.

        Raises:
            TimeoutError: it takes longer; says what was not ready.
            ConnectionError: the head to join did not answer for so long.
        """
        if self._given.patient:
            self._cluster_id = await self._find_cluster(lambda: tell(self._wait()))
        limit_s = self._settings.start_timeout_s
        try:
            return await asyncio.wait_for(self.start(), limit_s)
        except asyncio.TimeoutError as error:
            if str(error):
                raise
            if self._session is None and self._given.address:
                text = f"no head at {self._given.address} within {limit_s:g} s"
                raise ConnectionError(text) from None
            raise TimeoutError(f"the node was not ready in {limit_s:g} s") from None

    async def start(self) -> dict[str, Any]:
        """Start what was asked for; return what the discovery file says.

        Raises:
            ConnectionError: the head to join does not answer; names its address.
            ProtocolError: it refused the token or the version.
            OSError: the port is in use, or a directory cannot be made.
        """
        given = self._given
        cluster_id = ids.new_cluster_id() if given.head else self._cluster_id
        cluster_id = cluster_id or await self._find_cluster()
        host = given.host or _own_address(given.address)
        session = session_dir.create(self._root, cluster_id, self._node_id, self._token)
        self._session = session
        logs = Path(self._settings.log_dir or session.path / "logs")
        log_files.log_to(logs)
        log_files.keep_output(self._given.start_log, logs)
        agent = AgentService(
            self._agent_options(session, cluster_id, host), self._settings, self._token
        )
        self._agent = agent
        if given.head and not given.local:
            self._head = self._head_process(session, cluster_id, host, logs)
            self._head.begin()
        await agent.start()  # starts a zygote, which gets ready while grpc is loaded
        head = given.address
        if isinstance(self._head, HeadProcess):
            importlib.import_module("sparkray.transport.server")  # grpc, meanwhile
            with _hint_if_taken():
                head = await self._head.ready()
        port = await self._serve(agent, cluster_id, host)
        head = head or f"{host}:{port}"
        await agent.join(self._peer_of(head), f"{host}:{port}")
        about = self._about(session, cluster_id, host, head)
        about["warnings"] = agent.warnings
        session.announce(about)
        self._told = about
        self._wait_no_more()
        session.hold_segments()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, session_dir.sweep, self._root)
        loop.run_in_executor(None, waiting.sweep, self._root)
        loop.run_in_executor(None, session_dir.sweep_segments)
        return about

    async def finished(self) -> str:
        """Wait until the agent or the head ends by itself; return why."""
        assert self._agent is not None
        waits: list[Awaitable[str]] = [self._agent.finished()]
        if self._head is not None:
            waits.append(self._head.finished())
        return await first(*waits)

    @property
    def is_patient(self) -> bool:
        return bool(self._given.patient)

    @property
    def starts_anew(self) -> bool:
        """Whether another node should take the place of this one, which has ended."""
        return self._head is None and self._agent is not None and self._agent.cast_out

    async def stop(self, reason: str) -> None:
        """End everything and remove every file.  Repeatable."""
        steps: list[Awaitable[Any]] = []
        if self._head is not None:
            steps.append(self._head.stop(reason))
        if self._agent is not None:
            steps.append(self._agent.stop(reason))
        if self._peer is not None:
            steps.append(self._peer.close())
        if self._server is not None:
            steps.append(self._server.stop(0.1))
        for step in steps:
            try:
                await asyncio.wait_for(step, STOP_TIMEOUT_S)
            except Exception:
                _log.exception("a part of the node did not end well")
        if self._session is not None:
            self._session.remove()
        self._wait_no_more()

    async def _serve(self, agent: AgentService, cluster_id: bytes, host: str) -> int:
        from sparkray.transport import server

        secrets: dict[str, Any] = {"token": self._token, "tls": self._tls}
        if not (self._given.head and self._given.local):
            serving = server.serve(agent.servicers(), host=host, port=0, **secrets)
            self._server, port = await serving
            return port
        from sparkray.head.service import HeadService
        from sparkray.head.serving import serve_head

        self._head = HeadService(
            cluster_id, self._settings, self._token, sparkray.__version__, self._tls
        )
        with _hint_if_taken():
            where = {"host": host, "port": self._given.port}
            self._server, port = await serve_head(
                self._head, agent.servicers(), **where, **secrets
            )
        return port

    def _head_process(
        self, session: session_dir.SessionDir, cluster_id: bytes, host: str, logs: Path
    ) -> HeadProcess:
        return HeadProcess(
            HeadOptions(
                cluster_id=cluster_id,
                host=host,
                port=self._given.port,
                state_file=session.path / "head.db",
                log_dir=logs,
                token_file=session.token_file,
                start_timeout_s=self._settings.start_timeout_s,
            ),
            on_restart=self._announce_again,
        )

    def _announce_again(self) -> None:
        """The head has another process id."""
        if self._session is not None and self._told:
            self._told["head_pid"] = self._head_pid()
            self._session.announce(self._told)

    def _head_pid(self) -> int:
        if isinstance(self._head, HeadProcess):
            return self._head.pid
        return os.getpid() if self._given.head else 0

    async def _find_cluster(self, absent: Callable[[], None] | None = None) -> bytes:
        """Ask the head which cluster it is; waits for one that is not there yet.

        Args:
            absent: called once if it is not.
        """
        loop = asyncio.get_running_loop()
        pause_s, said_s = RETRY_S[0], -SAY_S
        while True:
            try:
                status = await self._peer_of(self._given.address).call(
                    "Head", "Status", control.ClusterStatus(), control.StatusReport, 10
                )
            except (ConnectionError, TimeoutError) as error:
                if isinstance(error, ProtocolError):
                    raise
                if absent is not None:
                    absent()
                    absent = None
                if loop.time() > said_s + SAY_S:
                    said_s = loop.time()
                    _log.info("waiting for the head: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                return status.cluster_id

    def _wait(self) -> dict[str, Any]:
        """Let others find this node while it waits; return what they are told."""
        about = self._about_waiting()
        self._waiting = waiting.WaitingFile(self._root, about)
        return about

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()

    def _peer_of(self, address: str) -> Peer:
        from sparkray.transport.client import Peer

        if self._peer is None:
            self._peer = Peer(address, self._token, self._tls)
        return self._peer

    def _agent_options(
        self, session: session_dir.SessionDir, cluster_id: bytes, host: str
    ) -> AgentOptions:
        given = self._given
        return AgentOptions(
            cluster_id=cluster_id,
            node_id=self._node_id,
            host=host,
            session_dir=str(session.path),
            segment_dir=str(session.segments),
            log_dir=self._settings.log_dir or str(session.path / "logs"),
            token_file=str(session.token_file),
            num_cpus=given.num_cpus,
            resources=given.resources,
            labels=given.labels,
            gpu_ids=gpu_ids(os.environ),
            is_head=given.head,
            local=given.local,
        )

    def _about(
        self, session: session_dir.SessionDir, cluster_id: bytes, host: str, head: str
    ) -> dict[str, Any]:
        return {
            **self._about_waiting(),
            "waiting": False,
            "cluster_id": cluster_id.hex(),
            "host": host,
            "head": head,
            "agent_socket": str(session.agent_socket),
            "token_file": str(session.token_file),
            "session_dir": str(session.path),
            "head_pid": self._head_pid(),
        }

    def _about_waiting(self) -> dict[str, Any]:
        """Return what can be said of this node before its head is there."""
        unknown = ("cluster_id", "host", "agent_socket", "token_file", "session_dir")
        return {
            **dict.fromkeys(unknown, ""),
            "waiting": True,
            "node_id": self._node_id.hex(),
            "head": self._given.address,
            "pid": os.getpid(),
            "host_name": socket.gethostname(),
            "version": sparkray.__version__,
            "log_dir": self._settings.log_dir,
            "python": platform.python_version(),
            "is_head": self._given.head,
            "local": self._given.local,
            "owned": self._given.owner_fd is not None,
        }


async def run(
    given: argparse.Namespace, settings: Settings, environment: MutableMapping[str, str]
) -> int:
    """Run a node until it ends; return the exit status of the process.

    A node that was cast out, and lives, starts anew under another id.
    """
    starter = Starter(given.ready_fd, given.owner_fd)
    stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    starter.watch(stop)
    try:
        root = session_dir.root(settings.temp_dir, environment)
        token = _find_token(root, given, environment)
        environment.pop("SPARKRAY_TOKEN", None)  # children get the path of the file
        if given.patient:
            _log_while_waiting(settings.log_dir, given.start_log)
        while await _run_one(Node(given, settings, root, token), starter, stop):
            _log.warning("it starts anew")
    except Exception as error:
        _log.error("the node could not start", exc_info=True)
        starter.tell_error(error)
        return 1
    finally:
        log_files.drop_output(given.start_log)
    return 0


def _log_while_waiting(log_dir: str, output: str) -> None:
    if not log_dir:
        log_files.log_to_output()
        return
    log_files.log_to(Path(log_dir))
    log_files.keep_output(output, Path(log_dir))


async def _run_one(node: Node, starter: Starter, stop: asyncio.Future[str]) -> bool:
    """Run one node from start to end; return True if another should follow."""
    reason = "it could not start"
    try:
        about = await unless(stop, node.start_in_time(starter.tell))
        if about is None:
            return False
        starter.tell(about)
        reason = await first(asyncio.shield(stop), node.finished())
        return not stop.done() and node.starts_anew
    except (ConnectionError, TimeoutError) as error:
        if isinstance(error, ProtocolError) or not node.is_patient:
            raise
        _log.warning("the head went away: %s", error)
        await unless(stop, asyncio.sleep(RETRY_S[1]))
        return not stop.done()
    finally:
        await node.stop(reason)


async def _run_and_exit(given: argparse.Namespace, settings: Settings) -> NoReturn:
    """End the process as soon as the node has ended.

    All is removed by then.  Leaving the usual way would wait for the threads of
    libraries, among them some that were told to begin just before the end.
    """
    status = await run(given, settings, os.environ)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def main(argv: list[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    if given.head == bool(given.address):
        _parser().error("give one of --head and --address")
    try:
        settings = Settings.from_environment(
            temp_dir=given.temp_dir,
            log_dir=given.log_dir,
            object_store_memory=given.object_store_memory,
            worker_port_min=given.worker_port_min,
            worker_port_max=given.worker_port_max,
        )
    except ValueError as error:
        Starter(given.ready_fd, None).tell_error(error)
        log_files.drop_output(given.start_log)
        return 1
    asyncio.run(_run_and_exit(given, settings))
    raise AssertionError("unreachable")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m sparkray.cli.daemon", description=__doc__
    )
    add = parser.add_argument
    add("--head", action="store_true", help="run the cluster's head here too")
    add("--address", default="", help="HOST:PORT of the head to join")
    add("--host", default="", help="the address to listen on and to announce")
    add("--port", type=int, default=0, help="the head's port; 0: any")
    add("--num-cpus", type=float)
    add("--resources", type=json.loads, default={}, help="JSON: name -> amount")
    add("--labels", type=json.loads, default={}, help="JSON: name -> value")
    add("--object-store-memory", type=int, help="bytes")
    add("--temp-dir", help="parent of the session directory")
    add("--log-dir", help="keep the logs here")
    add("--worker-port-min", type=int)
    add("--worker-port-max", type=int)
    add("--owner-fd", type=int, help="end when this pipe ends")
    add("--ready-fd", type=int, help="write one JSON line here when ready")
    add("--start-log", default="", help="our output's file: becomes one of the logs")
    add("--patient", action="store_true", help="wait for the head as long as it takes")
    add("--local", action="store_true", help="one node, for one driver")
    return parser


def _find_token(
    root: Path, given: argparse.Namespace, environment: Mapping[str, str]
) -> bytes:
    """Return the cluster's token: given, made for a new cluster, or found on this host.

    Raises:
        ValueError: the head is elsewhere, and nothing was given.
    """
    if (token := auth.token_from_environment(environment)) is not None:
        return token
    if given.head:
        return auth.new_token()
    for about in session_dir.announced(root):
        if about.get("head") == given.address:
            return auth.read_token(about["token_file"])
    raise ValueError(
        f"no token for the cluster at {given.address}: set SPARKRAY_TOKEN_FILE to the"
        " file that holds it"
    )


@contextlib.contextmanager
def _hint_if_taken() -> Iterator[None]:
    """Add to the error of a port in use what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            error.strerror = f"{error.strerror}; {_TAKEN}"
        raise


def _own_address(head: str) -> str:
    """Return the address of this host that packets to ``head`` leave from."""
    if not head:
        return "127.0.0.1"
    host, _, port = head.rpartition(":")
    with contextlib.suppress(OSError):
        family, kind, _, _, name = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(name)
            return str(probe.getsockname()[0])
    return "127.0.0.1"


if __name__ == "__main__":
    sys.exit(main())
