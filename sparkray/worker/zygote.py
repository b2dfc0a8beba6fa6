"""The zygote: imports what workers need once, then forks them in milliseconds.

    python -m sparkray.worker.zygote FD

FD is one end of a socket pair; the agent holds the other.  There is one thread, and it
only waits, forks, reaps and, while nothing is asked of it, imports the modules that
jobs named.  When the agent is gone (its end of the pair closes), the zygote kills its
workers and removes the directories of the node, so that even a SIGKILLed agent leaves
nothing.

Workers are killed by the kernel when the zygote dies (PR_SET_PDEATHSIG); each leads a
process group of its own, so that what user code started ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import gc
import importlib
import os
import random
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator

from sparkray.exceptions import ProtocolError
from sparkray.protocol import codec, zygote
from sparkray.protocol.framing import FrameDecoder, frame
from sparkray.worker.leaving import leave_worker
from sparkray.worker.start import WorkerStart

#: Imported before the first fork; what is missing is left out.
COMMON_MODULES = ("msgspec", "cloudpickle", "sparkray.worker.executor", "numpy")

_PR_SET_PDEATHSIG = 1


class Zygote:
    """Forks and reaps.  `serve` returns in each forked child, with what it was told."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._decoder = FrameDecoder()
        self._children: dict[int, bytes] = {}  # pid -> worker id
        self._directories: list[str] = []
        self._preload: list[str] = []
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> zygote.ForkWorker | None:
        """Serve the agent.

        Returns:
            in a forked child, the request; in the zygote itself None, once the agent is
            gone and all is cleaned up.
        """
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for message in self._messages():
            if isinstance(message, zygote.ForkWorker):
                if self._fork(message):
                    return message
            elif isinstance(message, zygote.Preload):
                new = [m for m in message.modules if m not in self._preload]
                self._preload += [m for m in new if m not in sys.modules]
            elif isinstance(message, zygote.Prepare):
                self._directories = message.directories
                import_quietly(COMMON_MODULES)
                self._say(zygote.Ready(os.getpid()))
            elif isinstance(message, zygote.Leave):
                self._directories = []
                break
        self._end()
        return None

    def _messages(self) -> Iterator[object]:
        """Yield requests until the agent closes; reap and preload in between."""
        poller = select.poll()
        poller.register(self._agent, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(0 if self._preload else None)}
            if self._wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
                self._reap()
            if self._agent.fileno() in ready:
                try:
                    data = self._agent.recv(1 << 16)
                except (ConnectionError, InterruptedError):
                    data = b""
                if not data:
                    return
                for body in self._decoder.feed(data):
                    yield zygote.decode(body)
            elif not ready and self._preload:
                import_quietly([self._preload.pop(0)])

    def _fork(self, request: zygote.ForkWorker) -> bool:
        """Fork; return True in the child."""
        worker_id, parent = request.start.worker_id, os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._say(zygote.ForkFailed(worker_id, f"cannot fork: {error}"))
            return False
        if pid == 0:
            die_with_parent(parent)
            self._leave()
            return True
        with contextlib.suppress(OSError):  # the child does it too; whoever is first
            os.setpgid(pid, pid)
        self._children[pid] = worker_id
        self._say(zygote.Forked(worker_id, pid))
        return False

    def _leave(self) -> None:
        """In a forked child: let go of all that is the zygote's."""
        signal.set_wakeup_fd(-1)
        self._agent.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._children.clear()

    def _reap(self) -> None:
        """Report every ended child, after ending what is left of its process group."""
        while self._children:
            try:  # look first: as long as it is not reaped, nobody gets its number
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            worker_id = self._children.pop(ended.si_pid, None)
            if worker_id is not None:
                code = os.waitstatus_to_exitcode(status)
                self._say(zygote.Exited(worker_id, ended.si_pid, code))

    def _say(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: `_messages` will see it
            self._agent.sendall(frame(codec.encode(message)))

    def _end(self) -> None:
        for pid in self._children:
            kill_group(pid)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)


def import_quietly(modules: list[str] | tuple[str, ...]) -> None:
    """Import what can be imported, then take it all out of the collector's sight.

    Without `gc.freeze` the first collection in each worker would touch, and so copy,
    every page that it shares with the zygote.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # user code: it will tell the worker that needs it
            traceback.print_exc()
    gc.collect()
    gc.freeze()


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request took hold
        os._exit(1)


def become_worker(request: zygote.ForkWorker) -> WorkerStart:
    """In a forked child: own group, signals, output and random numbers."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(request.stdout, 1)
    _redirect(request.stderr, 2)
    faulthandler.enable(2, all_threads=False)  # a crash shows where the code was
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    enter_environment(request.start)
    return request.start


def enter_environment(start: WorkerStart) -> None:
    """Go where the runtime environment says; what is started from here finds it too."""
    if start.working_dir:
        os.chdir(start.working_dir)
    if start.import_path:
        sys.path[:0] = start.import_path
        known = os.environ.get("PYTHONPATH")
        places = [*start.import_path, *([known] if known else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(places)


def _redirect(path: str, fd: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    opened = os.open(path.replace(zygote.PID, str(os.getpid())), flags, 0o600)
    os.dup2(opened, fd)
    os.close(opened)


def _nothing(number: int, stack_frame: object) -> None:
    """A Python-level handler must exist for the wake-up descriptor to be written."""


def run_as_worker(request: zygote.ForkWorker) -> int:
    """Be the worker until it ends; return its exit code."""
    try:
        start = become_worker(request)
        from sparkray.worker.executor import run_worker

        run_worker(start)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:  # the edge of the process
        traceback.print_exc()
        return 1
    return 0


def main(fd: int) -> None:
    agent = socket.socket(fileno=fd)
    agent.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ends with the agent, not before
    try:
        request = Zygote(agent).serve()
    except ProtocolError:
        traceback.print_exc()
        sys.exit(errno.EPROTO)
    if request is not None:
        leave_worker(run_as_worker(request))


if __name__ == "__main__":
    main(int(sys.argv[1]))
