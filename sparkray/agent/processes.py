"""Zygotes as child processes of the agent: start, ask to fork, hear of ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from sparkray.agent.environments import expanded, understood
from sparkray.agent.logs import read_tail
from sparkray.protocol import codec, zygote
from sparkray.protocol.framing import FrameDecoder, frame

#: Runs without the current directory among the places of imports: a file ``queue.py``
#: in it must not become the standard library's.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    " from sparkray.worker.zygote import main; main(int(sys.argv[1]))"
)


class ZygoteProcess:
    """One zygote.

    Args:
        python: the interpreter.
        environment: what it, and so every worker of it, finds in ``os.environ``.
        log_path: where its own output goes.
        directories: what it removes if the agent vanishes.
        on_message: called with each of its messages.
        on_end: called once when it is gone.
    """

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        log_path: str,
        directories: list[str],
        on_message: Callable[[Any], None],
        on_end: Callable[[ZygoteProcess], None],
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._log_path = log_path
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = _spawn(python, environment, log_path, theirs.fileno())
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)
        self._closed = False
        self.send(zygote.Prepare(directories))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send; dropped if the zygote is gone."""
        if self._closed:
            return
        if not self._unsent:
            self._loop.add_writer(self._socket, self._writable)
        self._unsent += frame(codec.encode(message))
        self._writable()

    def close(self) -> None:
        """Let it go: it kills its workers and ends.  `wait` for that."""
        self.send(zygote.Leave())
        self._close_socket()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def log_tail(self) -> str:
        return read_tail(self._log_path)

    def _close_socket(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    async def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it if that takes longer than ``timeout_s``."""
        deadline = self._loop.time() + timeout_s
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
                self._process.wait()
                return
            await asyncio.sleep(0.005)

    def _writable(self) -> None:
        with contextlib.suppress(
            BlockingIOError, BrokenPipeError, ConnectionResetError
        ):
            del self._unsent[: self._socket.send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._close_socket()
            self._process.kill()  # it closed its socket: it ends, or is broken
            self._process.wait()
            self._on_end(self)
            return
        for body in self._decoder.feed(data):
            self._on_message(zygote.decode(body))


def environment_of(
    runtime_env: str, base: Mapping[str, str], token_file: str, venv: str = ""
) -> dict[str, str]:
    """Return the environment variables of a zygote.

    Args:
        venv: its virtual environment, "" for none.

    Raises:
        RuntimeEnvSetupError: the runtime environment is not understood.
    """
    given = expanded(understood(runtime_env).env_vars, base)
    environment = {**base, **given}
    if "PYTHONPATH" in given and "PYTHONPATH" in base:  # there sparkray may be found
        places = given["PYTHONPATH"].split(os.pathsep)
        more = base["PYTHONPATH"].split(os.pathsep)
        places += [place for place in more if place not in places]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    if "OMP_NUM_THREADS" not in environment:
        environment |= {"OMP_NUM_THREADS": "1", zygote.OMP_FOLLOWS: "1"}
    if venv:
        environment["VIRTUAL_ENV"] = venv
        places = [os.path.join(venv, "bin"), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(places)
    environment.pop("SPARKRAY_TOKEN", None)
    environment["SPARKRAY_TOKEN_FILE"] = token_file
    return environment


def describe_exit(code: int, pid: int, host: str) -> tuple[str, str]:
    """Return kind ("exit" or "signal") and words for how a process ended."""
    where = f"process {pid} on {host}"
    if code >= 0:
        return "exit", f"{where} exited with code {code}"
    with contextlib.suppress(ValueError):
        return "signal", f"{where} was ended by {signal.Signals(-code).name}"
    return "signal", f"{where} was ended by signal {-code}"


def _spawn(
    python: str, environment: Mapping[str, str], log_path: str, fd: int
) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with open(os.open(log_path, flags, 0o600), "ab") as log:
        return subprocess.Popen(
            [python, "-c", _BOOT, str(fd)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[fd],
            start_new_session=True,
            env=dict(environment),
        )
