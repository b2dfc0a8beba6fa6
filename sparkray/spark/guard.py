"""Ties a node to a Spark executor: a small process between the two.

    Spark Python worker                guard                  node daemon
      stdin: one line of JSON  ------>   |  starts it, owner pipe --> |
      stdout: lines of JSON    <------   |  <---- SIGCHLD at its end  |
      (stdin's end, if held)             |
                                         |  every second: is the
                                         |  executor's process there?
                                         |  and now and then: the head?

The guard is in a session of its own, so that Spark's killing of a Python worker's
process group does not reach the node, and the node ends in good order.  If the guard
itself is killed, the owner pipe ends the node.

A lock per executor and cluster lets one node start however many Spark tasks try.  Its
directory is named after the executor's process, which is how a UDF finds the node of
its own executor (`sparkray.spark.discovery`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkray.exceptions import SparkrayError
from sparkray.launch import discovery, process
from sparkray.launch.process import NodeOptions, NodeProcess

#: How often the executor is looked at, and the head.
LOOK_S = 1.0
LOOK_AT_HEAD_S = 5.0
#: A node whose head was away for so long ends: the driver's host is gone.
HEAD_LOST_S = 60.0
APP_FILE = "app"
_FOLDER = "x"


@dataclass(frozen=True)
class Order:
    """What a Spark task asks its guard for.  Goes through a pipe: it has the token."""

    token: str
    address: str
    executor_pid: int
    executor_started_s: float
    app_id: str
    hold: bool  #: the node ends with the Spark task, not only with the executor
    timeout_s: float
    num_cpus: float
    host: str
    object_store_memory: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    worker_port_min: int | None = None
    worker_port_max: int | None = None


def executor_folder(executor_pid: int) -> Path:
    """Return the parent of the session directories of an executor's nodes."""
    return discovery.default_temp_dir() / f"{_FOLDER}{executor_pid}"


def executor_folders() -> list[Path]:
    """Return the folders of all executors on this host that have or had a node."""
    return sorted(discovery.default_temp_dir().glob(f"{_FOLDER}[0-9]*"))


def main() -> int:
    order = Order(**json.loads(sys.stdin.readline()))
    if not order.hold and os.fork():
        os._exit(0)  # nobody's child: the Python worker will not be there to reap it
    folder = executor_folder(order.executor_pid)
    process.make_private(folder.parent)
    _sweep(folder.parent)
    with _only_one(folder, order.address) as first:
        if not first:
            _tell(state="taken")
            return 0
        try:
            node = _start(order, folder)
        except (SparkrayError, OSError) as error:
            _tell(state="failed", detail=str(error))
            return 1
        _tell(state="started", detail=node.node.node_id)
        try:
            return _watch(order, node)
        finally:
            node.stop()


def _start(order: Order, folder: Path) -> NodeProcess:
    (folder / APP_FILE).write_text(order.app_id)
    secret = folder / f"token-{os.getpid()}"
    fd = os.open(secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(fd, "w") as file:
        file.write(order.token)
    options = NodeOptions(
        address=order.address,
        host=order.host,
        num_cpus=order.num_cpus,
        resources=order.resources,
        object_store_memory=order.object_store_memory,
        labels=order.labels,
        temp_dir=folder,
        worker_port_min=order.worker_port_min,
        worker_port_max=order.worker_port_max,
        environment={**order.environment, "SPARKRAY_TOKEN_FILE": str(secret)},
    )
    try:
        with _given_up_with_the_task():
            return process.start_node(options, timeout_s=order.timeout_s)
    finally:
        secret.unlink()


@contextlib.contextmanager
def _given_up_with_the_task() -> Iterator[None]:
    """End the node that starts in the block if the Spark task ends before it is up.

    A node waits for its head; when that is gone, Spark cancels the task.
    """
    done_read, done_write = os.pipe()

    def watch() -> None:
        import psutil

        if 0 not in select.select([0, done_read], [], [])[0]:
            return
        while not select.select([done_read], [], [], 0.2)[0]:
            for child in psutil.Process().children():
                child.terminate()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.close(done_write)
        thread.join()
        os.close(done_read)


def _watch(order: Order, node: NodeProcess) -> int:
    """Wait for the first end: the node's, the executor's or the Spark task's."""
    import psutil

    try:
        executor = psutil.Process(order.executor_pid)
    except psutil.NoSuchProcess:
        return 0
    if abs(executor.create_time() - order.executor_started_s) > 1.0:
        return 0
    if not order.hold:  # the Spark task ends now: let go of its pipes
        _close_pipes()
    wake = _wake_at_child_end()
    watch = _HeadWatch(order.address, time.monotonic())
    while executor.is_running() and executor.status() != psutil.STATUS_ZOMBIE:
        if watch.is_lost(time.monotonic()):
            return 0
        code = node.poll()
        if code is not None:
            return code
        task = [0] if order.hold else []
        ready = select.select([wake, *task], [], [], LOOK_S)[0]
        if 0 in ready:
            break  # the Spark task that holds our stdin is gone
        if wake in ready:
            os.read(wake, 64)
    return 0


class _HeadWatch:
    """Whether the head has been away for too long."""

    def __init__(self, address: str, now_s: float) -> None:
        self._address = address
        self._looked_s = self._seen_s = now_s

    def is_lost(self, now_s: float) -> bool:
        if now_s - self._looked_s >= LOOK_AT_HEAD_S:
            self._looked_s = now_s
            if head_answers(self._address):
                self._seen_s = now_s
        return now_s - self._seen_s >= HEAD_LOST_S


def head_answers(address: str) -> bool:
    """Tell whether something listens where the head is."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_S).close()
    except OSError:
        return False
    return True


def await_head(address: str, timeout_s: float) -> bool:
    """Wait until the head can be reached; False if it cannot in time."""
    deadline_s = time.monotonic() + timeout_s
    while not head_answers(address):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True


def _wake_at_child_end() -> int:
    """Return what becomes readable when a child has ended."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def _close_pipes() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)


@contextlib.contextmanager
def _only_one(folder: Path, address: str) -> Iterator[bool]:
    """Yield whether this guard is the only one of its executor and cluster."""
    name = hashlib.sha256(address.encode()).hexdigest()[:8]
    path = folder / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        with _alone(folder.parent):
            process.make_private(folder)
            first = stack.enter_context(_lock(path))
        yield first
        if first:
            with _alone(folder.parent):
                path.unlink(missing_ok=True)
                if not any(folder.glob("*.lock")):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """Keep other guards from making and removing folders and locks meanwhile."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _sweep(parent: Path) -> None:
    """Remove the folders of executors that are gone, after a guard was killed."""
    import psutil

    with _alone(parent):
        for folder in parent.glob(f"{_FOLDER}[0-9]*"):
            if psutil.pid_exists(int(folder.name[len(_FOLDER) :])):
                continue
            with contextlib.ExitStack() as stack:
                paths = folder.glob("*.lock")
                locks = [stack.enter_context(_lock(path)) for path in paths]
                if all(locks):
                    shutil.rmtree(folder, ignore_errors=True)


def _tell(**fields: Any) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def encode(order: Order) -> bytes:
    return json.dumps(dataclasses.asdict(order)).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())
