"""Starts a node as a process of its own and waits until it is ready.

                  ready pipe: one JSON line, then closed
    this process  <-------------------------------------  node daemon
                  ------------------------------------->
                  owner pipe: never written; its end is our death

The daemon's own output goes to a file, which it moves into its log directory as soon as
that exists, and removes if it ends before; it is what an error message quotes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkray.config import Settings
from sparkray.exceptions import StartError
from sparkray.launch import discovery
from sparkray.launch.discovery import Node
from sparkray.resources import GPU

_TAIL_BYTES = 4000
#: How long a node that is given up may take over its orderly end.
_END_S = 5.0
#: Runs the daemon without the current directory among the places of imports: a file
#: ``queue.py`` beside the driver must not become the standard library's.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    " from sparkray.cli.daemon import main; sys.exit(main())"
)


@dataclass(frozen=True)
class NodeOptions:
    """What a node is started with; a None leaves the choice to the node."""

    head: bool = False  #: run the head too, as a process of its own unless local
    address: str | None = None  #: the head to join
    host: str | None = None
    port: int | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    object_store_memory: int | None = None
    labels: Mapping[str, str] | None = None
    temp_dir: Path | None = None
    worker_port_min: int | None = None
    worker_port_max: int | None = None
    log_dir: str | None = None
    local: bool = False
    patient: bool = False  #: wait for the head however long it is away
    environment: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the daemon's command line."""
        amounts = dict(self.resources or {})
        if self.num_gpus is not None:
            amounts[GPU] = self.num_gpus
        values = {
            "--address": self.address,
            "--host": self.host,
            "--port": self.port,
            "--num-cpus": self.num_cpus,
            "--resources": json.dumps(amounts) if amounts else None,
            "--object-store-memory": self.object_store_memory,
            "--labels": json.dumps(dict(self.labels)) if self.labels else None,
            "--temp-dir": self.temp_dir,
            "--worker-port-min": self.worker_port_min,
            "--worker-port-max": self.worker_port_max,
            "--log-dir": self.log_dir,
        }
        given = [f"{name}={v}" for name, v in values.items() if v is not None]
        flags = {"--head": self.head, "--local": self.local, "--patient": self.patient}
        return [*(name for name, on in flags.items() if on), *given]


class NodeProcess:
    """A node daemon that this process started.

    Attributes:
        node: what the daemon said of itself: that it is ready, or that it waits for
            its head.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], owner_fd: int, node: Node
    ) -> None:
        self.node = node
        self._process = process
        self._owner_fd = owner_fd

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return the exit code.

        Raises:
            TimeoutError: it still runs.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"node daemon {self.pid} still runs") from None

    def stop(self, timeout_s: float = 15.0) -> int:
        """End it in good order; if that takes too long, by force.  Repeatable."""
        owned = self._owner_fd >= 0
        self.let_go()
        if not owned:
            self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            return self.wait(timeout_s)
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(TimeoutError):
                return self.wait(timeout_s / 3)
        return self.wait()

    def kill(self) -> None:
        """End it and all its processes at once, as the death of a machine would.

        None of them runs any more when this returns.
        """
        if self.poll() is None:
            with contextlib.ExitStack() as ends:
                for pid in _stopped(self.pid):
                    with contextlib.suppress(ProcessLookupError):
                        end = os.pidfd_open(pid)
                        ends.callback(os.close, end)
                        signal.pidfd_send_signal(end, signal.SIGKILL)
                        select.select([end], [], [])
        self.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the owner pipe: the node ends as if this process had.  Repeatable."""
        fd, self._owner_fd = self._owner_fd, -1
        if fd >= 0:
            os.close(fd)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            self._process.send_signal(number)


def _stopped(pid: int) -> list[int]:
    """Stop a process and all under it, so that none is made any more; return them."""
    stopped: list[int] = []
    while new := [p for p in (pid, *processes_of(pid)) if p not in stopped]:
        for each in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped += new
    return stopped


def processes_of(pid: int) -> list[int]:
    """Return the processes under ``pid``: zygotes, workers and what these started."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children]


def start_node(
    options: NodeOptions,
    *,
    owned: bool = True,
    timeout_s: float | None = None,
    cancel_fd: int | None = None,
) -> NodeProcess:
    """Start a node and wait until it is ready, or a patient one until it is known that
    its head is not there yet.

    Args:
        owned: the node ends when this process does, however that happens.
        timeout_s: how long it may take; default: the setting ``start_timeout_s``.
        cancel_fd: ends the node when there is something to read here.  One that was
            ready by then is returned all the same, and is about to end.

    Raises:
        StartError: it ended, was not ready in time, or was given up.  Nothing is left
            running.
    """
    if timeout_s is None:
        timeout_s = Settings.from_environment().start_timeout_s
    log_fd, log = _new_log(options.temp_dir or discovery.default_temp_dir())
    owner_read, owner_write = os.pipe()
    ready_read, ready_write = os.pipe()
    arguments = [f"--ready-fd={ready_write}", f"--start-log={log}"]
    arguments += [f"--owner-fd={owner_read}"] if owned else []
    process = None
    try:
        try:
            process = _spawn(options, arguments, log_fd, [owner_read, ready_write])
        finally:
            os.close(owner_read)
            os.close(ready_write)
        node = _await_ready(process, ready_read, cancel_fd, log_fd, timeout_s)
    except BaseException as error:
        os.close(owner_write)
        if process is not None:
            _discard(process)
        Path(log).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StartError(f"cannot start a node: {error}") from error
        raise
    finally:
        os.close(ready_read)
        os.close(log_fd)
    if not owned:
        os.close(owner_write)
    return NodeProcess(process, owner_write if owned else -1, node)


def _new_log(temp_dir: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(".log", "starting-", make_private(temp_dir))
    except OSError as error:
        raise StartError(
            f"cannot keep session directories in {temp_dir} ({error.strerror}): set"
            " SPARKRAY_TEMP_DIR or --temp-dir to a directory that you can write to"
        ) from None


def make_private(directory: Path) -> Path:
    """Make a directory that only this user may enter, unless it is there.

    Raises:
        StartError: it belongs to somebody else.
    """
    directory = directory.absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise StartError(
            f"{directory} belongs to another user: set SPARKRAY_TEMP_DIR to a directory"
            " of your own"
        )
    return directory


def _spawn(
    options: NodeOptions, arguments: Sequence[str], log_fd: int, fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, *options.arguments(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        close_fds=True,
        pass_fds=fds,
        start_new_session=True,
        env={**child_environment(), **options.environment},
    )


def child_environment() -> dict[str, str]:
    """Return an environment in which a child imports the sparkray that runs here."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if root in installed or root in known.split(os.pathsep):
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, known]))}


def _await_ready(
    process: subprocess.Popen[bytes],
    fd: int,
    cancel_fd: int | None,
    log_fd: int,
    timeout_s: float,
) -> Node:
    deadline = time.monotonic() + timeout_s
    poller = select.poll()  # unlike `select`, it takes descriptors above 1023
    for watched in (fd,) if cancel_fd is None else (fd, cancel_fd):
        poller.register(watched, select.POLLIN)
    data, cancelled = b"", False
    while not data.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        ready = dict(poller.poll(left_s * 1000)) if left_s > 0 else {}
        if not ready and cancelled:
            break
        if not ready:
            text = f"a node was not ready after {timeout_s:g} s{_tail(log_fd)}"
            raise StartError(text)
        if fd not in ready:  # end it; whether it was ready meanwhile, it says itself
            assert cancel_fd is not None
            poller.unregister(cancel_fd)
            cancelled, deadline = True, time.monotonic() + _END_S
            process.terminate()
            continue
        piece = os.read(fd, 65536)
        data += piece
        if not piece:
            break
    if cancelled and not data.endswith(b"\n"):
        raise StartError("interrupted before the node was ready; it was ended")
    return _node_told(process, data, log_fd)


def _node_told(process: subprocess.Popen[bytes], data: bytes, log_fd: int) -> Node:
    """Return the node that the daemon's one line tells of.

    Raises:
        StartError: it tells of an error, or is none.
    """
    try:
        said = json.loads(data)
        if "error" in said:
            output = "" if said.get("foreseen") else _tail(log_fd)
            raise StartError(f"a node did not start: {said['error']}{output}")
        return Node.from_json(said)
    except (ValueError, KeyError):
        pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    raise StartError(f"a node ended while starting ({process.poll()}){_tail(log_fd)}")


def _discard(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log_fd: int) -> str:
    start = max(0, os.fstat(log_fd).st_size - _TAIL_BYTES)
    text = os.pread(log_fd, _TAIL_BYTES, start).decode(errors="replace").strip()
    return f"; its output:\n{text}" if text else ""
