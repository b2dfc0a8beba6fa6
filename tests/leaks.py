"""What a cluster must not leave behind: threads and sockets in the test's own process;
processes, session directories and segments on the host.

All clusters of one pytest process keep their session directories under one root, given
to them by ``SPARKRAY_TEMP_DIR``.  By that variable their processes are known as well,
so tests that run at the same time do not see each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

VARIABLE = "SPARKRAY_TEMP_DIR"
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05
LOG_TAIL_BYTES = 2_000


@contextmanager
def no_leaks(root: Path, *, timeout_s: float = 15.0) -> Iterator[None]:
    """Fail if the block leaves behind what was not there before it.

    Raises:
        AssertionError: after ``timeout_s``; names all that is left.
    """
    before = Footprint.now(root)
    yield
    deadline = time.monotonic() + timeout_s
    while left := Footprint.now(root).beyond(before):
        assert time.monotonic() < deadline, f"left behind:\n  {left}\n{logs(root)}"
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Footprint:
    """What exists at one moment, each thing as a line of text."""

    things: frozenset[str]
    sockets: int

    @classmethod
    def now(cls, root: Path) -> Footprint:
        things = {*_threads(), *_processes(root), *_files(root)}
        return cls(frozenset(things), _own_sockets())

    def beyond(self, before: Footprint) -> str:
        """Return what is here and was not there before, "" for nothing."""
        lines = sorted(self.things - before.things)
        if self.sockets > before.sockets:
            lines.append(f"{self.sockets - before.sockets} open sockets")
        return "\n  ".join(lines)


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"thread {thread.name} ({thread.ident})"


def _processes(root: Path) -> Iterator[str]:
    """Processes of our clusters; a zombie counts: somebody forgot to wait for it."""
    for process in psutil.process_iter(["pid", "name"]):
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(VARIABLE) == str(root):
                command = " ".join(process.cmdline())[:100]
                yield f"process {process.pid}: {command}"
        except psutil.ZombieProcess:
            with contextlib.suppress(psutil.Error):  # somebody waited for it just now
                if process.ppid() == os.getpid():
                    yield f"process {process.pid}: ended and not waited for"
        except psutil.Error:
            continue  # it ended meanwhile, or belongs to somebody else


def _files(root: Path) -> Iterator[str]:
    for path in _below(root, "agent.json"):
        yield f"session directory {path.parent}"
        segments = SHARED_MEMORY / f"sparkray-{path.parent.name}"
        if segments.is_dir():
            yield f"segments {segments}: {len(list(segments.iterdir()))}"
    yield from (f"directory {path}" for path in root.iterdir())


def _below(root: Path, *endings: str) -> Iterator[Path]:
    """Find files by the ends of their names, while directories come and go."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names if name.endswith(endings))


def _own_sockets() -> int:
    count = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            count += os.readlink(entry.path).startswith("socket:")
        except FileNotFoundError:
            continue  # the descriptor of this very scan
    return count


def logs(root: Path) -> str:
    """Return the ends of all logs below ``root``."""
    parts = []
    for path in sorted(_below(root, ".log", ".err")):
        try:
            text = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            continue
        if text.strip():
            parts.append(f"--- end of {path.name}\n{text}")
    return "\n".join(parts)
