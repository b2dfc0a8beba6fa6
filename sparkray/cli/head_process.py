"""The head as a child of its node's daemon: started, watched, started again.

It comes back on the same port with the same state file; see `sparkray.head.__main__`
for what goes over the two pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkray.cli.restarts import Restarts

_log = logging.getLogger(__name__)

#: Runs without the current directory among the places of imports, as the daemon does.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    " from sparkray.head.__main__ import main; sys.exit(main())"
)
#: How long an orderly end may take; the nodes of the cluster have 5 s for theirs.
STOP_S = 8.0


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What a head is started with."""

    cluster_id: bytes
    host: str
    port: int  #: 0: any; it keeps the one that it gets
    state_file: Path
    log_dir: Path
    token_file: Path
    start_timeout_s: float


class HeadProcess:
    """`begin`, then `ready`, then `finished`, then `stop`.

    Args:
        on_restart: called with its new process id.
    """

    def __init__(self, options: HeadOptions, on_restart: Callable[[], None]) -> None:
        self._options, self._on_restart = options, on_restart
        self._port = options.port
        self._process: asyncio.subprocess.Process | None = None
        self._owner_fd = -1
        self._restarts = Restarts()
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[str] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def begin(self) -> None:
        """Start it; it gets ready while the daemon does other things."""
        self._starting = asyncio.ensure_future(self._launch())

    async def ready(self) -> str:
        """Wait until it serves; return its address.

        Raises:
            OSError: it cannot listen there, or ended at once.
            TimeoutError: it does not get ready.
        """
        assert self._starting is not None
        await self._starting
        self._watching = asyncio.ensure_future(self._watch())
        return f"{self._options.host}:{self._port}"

    async def finished(self) -> str:
        """Wait until the cluster has ended, or the head is given up; return why."""
        assert self._watching is not None
        return await asyncio.shield(self._watching)

    async def stop(self, reason: str) -> None:
        """Have it end the cluster, then itself.  Repeatable."""
        for task in filter(None, (self._starting, self._watching)):
            task.cancel()
            await asyncio.wait([task])
        process, fd = self._process, self._owner_fd
        if process is not None and process.returncode is None:
            with contextlib.suppress(BrokenPipeError):
                os.write(fd, f"{reason}\n".encode())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        self._let_go()
        await self._kill()

    async def _watch(self) -> str:
        """Start it again whenever it dies; return why there is an end to that."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            status = await self._process.wait()
            if status == 0:
                return "the cluster was asked to end"
            pause_s = self._restarts.pause_s(loop.time())
            told = _told(status)
            if pause_s is None:
                times = self._restarts.quick
                _log.error(
                    "the head %s, the last of %d times soon after its start: it is"
                    " given up, and the cluster ends; its logs: %s",
                    *(told, times, self._options.log_dir),
                )
                return f"its head {told}, {times} times in a row"
            _log.error("the head %s: it is started again at port %d", told, self._port)
            await asyncio.sleep(pause_s)
            try:
                await self._launch()
            except (OSError, TimeoutError) as error:
                _log.error("the head did not start again: %s", error)
            else:
                _log.info("the head is back, process %d", self.pid)
                self._on_restart()

    async def _launch(self) -> None:
        self._restarts.started(asyncio.get_running_loop().time())
        self._let_go()
        owner_fd, self._owner_fd = os.pipe()
        ready_fd, told_fd = os.pipe()
        try:
            self._process = await self._spawn(owner_fd, told_fd)
        finally:
            os.close(owner_fd)
            os.close(told_fd)
        try:
            limit_s = self._options.start_timeout_s
            line = await asyncio.wait_for(_read_all(ready_fd), limit_s)
        except BaseException as error:
            await self._kill()
            if isinstance(error, asyncio.TimeoutError):
                raise TimeoutError(f"the head was not ready in {limit_s:g} s") from None
            raise
        self._port = self._port_told(line)

    def _port_told(self, line: bytes) -> int:
        said: dict[str, Any] = {}
        with contextlib.suppress(ValueError):  # it may have died while it wrote
            said = json.loads(line)
        if "errno" in said:
            raise OSError(said["errno"], said["error"])
        if "port" not in said:
            text = "it ended while starting; see its log"
            raise OSError(0, text, str(self._options.log_dir))
        return int(said["port"])

    async def _spawn(self, owner_fd: int, told_fd: int) -> asyncio.subprocess.Process:
        options = self._options
        environment = {**os.environ, "SPARKRAY_TOKEN_FILE": str(options.token_file)}
        environment.pop("SPARKRAY_TOKEN", None)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _BOOT),
            f"--cluster-id={options.cluster_id.hex()}",
            f"--host={options.host}",
            f"--port={self._port}",
            f"--state-file={options.state_file}",
            f"--log-dir={options.log_dir}",
            f"--owner-fd={owner_fd}",
            f"--ready-fd={told_fd}",
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(owner_fd, told_fd),
            env=environment,
        )

    async def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _let_go(self) -> None:
        fd, self._owner_fd = self._owner_fd, -1
        if fd >= 0:
            os.close(fd)


async def _read_all(fd: int) -> bytes:
    """Read a pipe to its end, and close it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _told(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
