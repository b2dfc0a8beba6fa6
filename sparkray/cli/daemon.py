"""One node as a process: its agent and, with ``--head``, the cluster's head.

    python -m sparkray.cli.daemon --head --num-cpus 4
    python -m sparkray.cli.daemon --address 10.0.0.1:6379

The only module that knows both head and agent; they share its loop and one gRPC port
and talk through that port all the same.  It makes the session directory, finds or makes
the token, tells who started it when the node is ready, and ends the node in good order
on a signal, on the end of its owner, or when the head says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import sparkray
from sparkray import ids
from sparkray.agent.host import gpu_ids
from sparkray.agent.options import AgentOptions
from sparkray.agent.service import AgentService
from sparkray.config import Settings
from sparkray.exceptions import ProtocolError, SparkrayError
from sparkray.launch import session_dir
from sparkray.protocol import control
from sparkray.transport import auth, tls

if TYPE_CHECKING:
    from sparkray.head.service import HeadService
    from sparkray.transport.client import Peer

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: How long the parts of a node may take over their orderly end.
STOP_TIMEOUT_S = 10.0
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
        self._head: HeadService | None = None
        self._server: Any = None
        self._peer: Peer | None = None

    async def start_in_time(self) -> dict[str, Any]:
        """Start, within ``start_timeout_s``; see `start`.

        Raises:
            TimeoutError: it takes longer; says what was not ready.
            ConnectionError: the head to join did not answer for so long.
        """
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
        cluster_id = ids.new_cluster_id() if given.head else await self._find_cluster()
        host = given.host or _own_address(given.address)
        session = session_dir.create(self._root, cluster_id, self._node_id, self._token)
        self._session = session
        logs = Path(self._settings.log_dir or session.path / "logs")
        _log_to(logs)
        _keep_start_log(self._given.start_log, logs)
        agent = AgentService(
            self._agent_options(session, cluster_id, host), self._settings, self._token
        )
        self._agent = agent
        await agent.start()  # starts a zygote, which gets ready while grpc is loaded
        port = await self._serve(agent, cluster_id, host)
        head = f"{host}:{port}" if given.head else given.address
        await agent.join(self._peer_of(head), f"{host}:{port}")
        about = self._about(session, cluster_id, host, head)
        about["warnings"] = agent.warnings
        session.announce(about)
        session.hold_segments()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, session_dir.sweep, self._root)
        loop.run_in_executor(None, session_dir.sweep_segments)
        return about

    async def finished(self) -> str:
        """Wait until the agent or the head ends by itself; return why."""
        assert self._agent is not None
        waits: list[Awaitable[str]] = [self._agent.finished()]
        if self._head is not None:
            waits.append(self._head.finished())
        return await _first(*waits)

    async def declared_dead(self) -> bool:
        """Ask the head of another process whether it gave this node up."""
        if self._head is not None or self._peer is None:
            return False
        request, kind = control.ListNodes(), control.NodeList
        try:
            answer = await self._peer.call("Head", "ListNodes", request, kind, 5.0)
        except (SparkrayError, ConnectionError, TimeoutError):
            return False
        return any(n.node_id == self._node_id and not n.alive for n in answer.nodes)

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

    async def _serve(self, agent: AgentService, cluster_id: bytes, host: str) -> int:
        from sparkray.transport import server

        servicers = [*agent.servicers()]
        if self._given.head:
            from sparkray.head.service import HeadService
            from sparkray.head.servicer import HeadServicer

            self._head = HeadService(
                cluster_id, self._settings, self._token, sparkray.__version__, self._tls
            )
            servicers.append(HeadServicer(self._head))
        try:
            self._server, port = await server.serve(
                servicers,
                host=host,
                port=self._given.port if self._given.head else 0,
                token=self._token,
                tls=self._tls,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                error.strerror = f"{error.strerror}; {_TAKEN}"
            raise
        if self._head is not None:
            self._head.start(f"{host}:{port}")
        return port

    async def _find_cluster(self) -> bytes:
        """Ask the head which cluster it is; waits for one that is not there yet."""
        request, pause_s = control.ClusterStatus(), RETRY_S[0]
        while True:
            try:
                status = await self._peer_of(self._given.address).call(
                    "Head", "Status", request, control.StatusReport, 10.0
                )
            except (ConnectionError, TimeoutError) as error:
                if isinstance(error, ProtocolError):
                    raise
                _log.info("no head yet: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                return status.cluster_id

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
            "cluster_id": cluster_id.hex(),
            "node_id": self._node_id.hex(),
            "host": host,
            "head": head,
            "agent_socket": str(session.agent_socket),
            "pid": os.getpid(),
            "host_name": socket.gethostname(),
            "version": sparkray.__version__,
            "is_head": self._given.head,
            "local": self._given.local,
            "owned": self._given.owner_fd is not None,
            "token_file": str(session.token_file),
            "session_dir": str(session.path),
        }


class Starter:
    """Who started this process: told when the node is ready, watched for its end.

    Args:
        ready_fd: where to write one line of JSON; None for standard output.
        owner_fd: a pipe that ends with the owner; None if there is no owner.
    """

    def __init__(self, ready_fd: int | None, owner_fd: int | None) -> None:
        self._ready_fd = ready_fd
        self._told = False
        self._owner_fd = owner_fd
        for fd in (ready_fd, owner_fd):
            if fd is not None:
                os.set_inheritable(fd, False)

    def tell(self, about: Mapping[str, Any]) -> None:
        """Write the one line; only the first call does."""
        if self._told:
            return
        self._told = True
        line = json.dumps(about) + "\n"
        if self._ready_fd is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        with contextlib.suppress(BrokenPipeError), open(self._ready_fd, "w") as file:
            file.write(line)

    def watch(self, stop: asyncio.Future[str]) -> None:
        """Settle ``stop`` when a signal comes or the owner ends."""
        loop = asyncio.get_running_loop()

        def end(reason: str) -> None:
            if not stop.done():
                stop.set_result(reason)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, signal.Signals(number).name)
        if (fd := self._owner_fd) is not None:
            os.set_blocking(fd, False)

            def owner_spoke() -> None:
                with contextlib.suppress(BlockingIOError):
                    if not os.read(fd, 4096):
                        loop.remove_reader(fd)
                        end("its owner ended")

            loop.add_reader(fd, owner_spoke)


async def run(
    given: argparse.Namespace, settings: Settings, environment: MutableMapping[str, str]
) -> int:
    """Run a node until it ends; return the exit status of the process.

    A node that the head declared dead, and that lives, starts anew under another id.
    """
    starter = Starter(given.ready_fd, given.owner_fd)
    stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    starter.watch(stop)
    try:
        root = session_dir.root(settings.temp_dir, environment)
        token = _find_token(root, given, environment)
        environment.pop("SPARKRAY_TOKEN", None)  # children get the path of the file
        while await _run_one(Node(given, settings, root, token), starter, stop):
            _log.warning("the head declared this node dead: it starts anew")
    except Exception as error:
        _log.error("the node could not start", exc_info=True)
        starter.tell(_told(error))
        return 1
    finally:
        _drop_start_log(given.start_log)
    return 0


def _told(error: Exception) -> dict[str, Any]:
    """Return what the starter is told of an error; one that nobody foresaw is printed
    as well, with its traceback."""
    foreseen = isinstance(error, (OSError, ValueError, SparkrayError))
    if not foreseen:
        traceback.print_exception(error)
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = ": ".join(filter(None, (error.filename, error.strerror)))
    return {"error": text, "kind": type(error).__name__, "foreseen": foreseen}


async def _run_one(node: Node, starter: Starter, stop: asyncio.Future[str]) -> bool:
    """Run one node from start to end; return True if another should follow."""
    reason = "it could not start"
    try:
        about = await _unless(stop, node.start_in_time())
        if about is None:
            return False
        starter.tell(about)
        reason = await _first(asyncio.shield(stop), node.finished())
        return not stop.done() and await node.declared_dead()
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
        Starter(given.ready_fd, None).tell(_told(error))
        _drop_start_log(given.start_log)
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
    add("--local", action="store_true", help="one node, for one driver")
    return parser


async def _unless(stop: asyncio.Future[str], work: Awaitable[_T]) -> _T | None:
    """Return what ``work`` returns, None if ``stop`` is settled before it is done."""
    task = asyncio.ensure_future(work)
    both: list[asyncio.Future[Any]] = [stop, task]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()  # it may have been done already


async def _first(*waits: Awaitable[str]) -> str:
    """Return the result of whichever is done first; the others are cancelled."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()


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


def _log_to(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        logging.basicConfig(
            filename=directory / f"node-{os.getpid()}.log",
            level=logging.INFO,
            force=True,  # a node that starts anew has another directory
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
    except OSError as error:
        text = (
            f"cannot write logs in {directory} ({error.strerror}): choose another"
            " directory by SPARKRAY_LOG_DIR or --log-dir"
        )
        raise OSError(error.errno, text) from error


def _keep_start_log(path: str, directory: Path) -> None:
    """Move the file of our own output beside the other logs, if it was not yet."""
    if path and os.path.exists(path):
        with contextlib.suppress(OSError):  # another file system
            os.rename(path, directory / f"daemon-{os.getpid()}.log")


def _drop_start_log(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
