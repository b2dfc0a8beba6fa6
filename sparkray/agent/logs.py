"""What workers print: from their files, line by line, to the driver of their job.

A worker writes the line ``\\x01task:<name>`` when it begins something of another name;
that line is never shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MARKER: Final = b"\x01task:"
#: How often files are looked at while something is printed; less often when all is
#: quiet or there are very many.
POLL_S: Final = 0.1
QUIET_POLL_S: Final = 0.4
QUIET_AFTER_S: Final = 2.0
POLL_S_PER_WORKER: Final = 0.001
#: A longer line is cut into several.
MAX_LINE_BYTES: Final = 16 * 1024
#: What one worker may print in a second; what is beyond stays in its file only.
MAX_BYTES_PER_S: Final = 1_000_000
#: So many log files of ended workers are kept.
KEPT_FILES: Final = 100
TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 8 * 1024
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Printed:
    """Lines of one worker, in order, under one name."""

    job_id: bytes
    name: str
    pid: int
    lines: list[str]
    is_stderr: bool


class LineSplitter:
    """Bytes of one file -> named lines.  Pure."""

    def __init__(self) -> None:
        self._partial = b""
        self.name = ""

    def feed(self, data: bytes, *, last: bool = False) -> list[tuple[str, str]]:
        """Add what was read; return complete lines, each with the name it came under.

        Args:
            last: the file will not grow any more: its last line counts as complete.
        """
        data = self._partial + data
        *lines, self._partial = data.split(b"\n")
        if self._partial and (last or len(self._partial) >= MAX_LINE_BYTES):
            lines.append(self._partial)
            self._partial = b""
        return [pair for line in lines for pair in self._named(line)]

    def _named(self, line: bytes) -> list[tuple[str, str]]:
        before, marker, name = line.partition(MARKER)
        shown = (
            [(self.name, text) for text in _cut(before)] if before or not marker else []
        )
        if marker:
            self.name = name.decode(errors="replace")
        return shown


def _cut(line: bytes) -> list[str]:
    pieces = range(0, max(1, len(line)), MAX_LINE_BYTES)
    return [
        line[at : at + MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        for at in pieces
    ]


class RateLimit:
    """How many bytes of one worker are shown.  Pure."""

    def __init__(self, bytes_per_s: int = MAX_BYTES_PER_S) -> None:
        self._per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._at = 0.0
        self._dropping = False

    def take(self, size: int, now: float) -> tuple[bool, bool]:
        """Return whether ``size`` bytes may be shown, and if a notice is due first."""
        grown = self._left + (now - self._at) * self._per_s
        self._left, self._at = min(float(self._per_s), grown), now
        if size <= self._left or self._left >= self._per_s:
            self._left -= size
            self._dropping = False
            return True, False
        notice, self._dropping = not self._dropping, True
        return False, notice


@dataclass(slots=True)
class _File:
    path: str
    is_stderr: bool
    offset: int = 0
    splitter: LineSplitter = field(default_factory=LineSplitter)


@dataclass(slots=True)
class _Tailed:
    worker_id: bytes
    job_id: bytes
    pid: int
    shown: bool
    files: list[_File]
    limit: RateLimit = field(default_factory=RateLimit)
    ended: bool = False


class LogTailer:
    """Follows the files of all workers.  Looks only while there are any.

    Args:
        emit: called with what was printed.
    """

    def __init__(self, emit: Callable[[Printed], None]) -> None:
        self._emit = emit
        self._tailed: dict[bytes, _Tailed] = {}
        self._ended: deque[list[_File]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._grew_at = 0.0

    def follow(
        self,
        worker_id: bytes,
        job_id: bytes,
        pid: int,
        paths: tuple[str, str],
        shown: bool,
    ) -> None:
        """Follow a worker's files.  Not ``shown``: only clean them up at its end."""
        files = [_File(paths[0], False), _File(paths[1], True)]
        self._tailed[worker_id] = _Tailed(worker_id, job_id, pid, shown, files)
        self._again()

    def ended(self, worker_id: bytes) -> None:
        """The worker ended: show the rest now."""
        tailed = self._tailed.pop(worker_id, None)
        if tailed is None:
            return
        tailed.ended = True
        self._look_at(tailed)
        self._ended.append(tailed.files)
        while len(self._ended) > KEPT_FILES // 2:  # two files each
            for file in self._ended.popleft():
                with contextlib.suppress(OSError):
                    os.unlink(file.path)

    def flush(self) -> None:
        """Show all that was printed until now."""
        for tailed in list(self._tailed.values()):
            self._look_at(tailed)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        if self._timer is None and any(t.shown for t in self._tailed.values()):
            loop = asyncio.get_running_loop()
            quiet = loop.time() - self._grew_at > QUIET_AFTER_S
            least_s = QUIET_POLL_S if quiet else POLL_S
            pause_s = max(least_s, POLL_S_PER_WORKER * len(self._tailed))
            self._timer = loop.call_later(pause_s, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self.flush()
        self._again()

    def _look_at(self, tailed: _Tailed) -> None:
        if not tailed.shown:
            return
        for file in tailed.files:
            try:
                size = os.stat(file.path).st_size
            except OSError:
                continue
            while file.offset < size:
                if not self._read(tailed, file):
                    break
            if tailed.ended:
                self._show(tailed, file, file.splitter.feed(b"", last=True))

    def _read(self, tailed: _Tailed, file: _File) -> bool:
        with open(file.path, "rb") as opened:
            opened.seek(file.offset)
            data = opened.read(_READ_BYTES)
        file.offset += len(data)
        pairs = file.splitter.feed(data)
        now = self._grew_at = asyncio.get_running_loop().time()
        shown, notice = tailed.limit.take(len(data), now)
        if notice:
            text = (
                f"[more than {MAX_BYTES_PER_S} bytes/s: output is left out here; all of"
                f" it is in {file.path}]"
            )
            pairs = [(file.splitter.name, text)]
        if shown or notice:
            self._show(tailed, file, pairs)
        return bool(data)

    def _show(self, tailed: _Tailed, file: _File, pairs: list[tuple[str, str]]) -> None:
        lines: list[str] = []
        for index, (name, line) in enumerate(pairs):
            lines.append(line)
            if index + 1 == len(pairs) or pairs[index + 1][0] != name:
                self._emit(
                    Printed(tailed.job_id, name, tailed.pid, lines, file.is_stderr)
                )
                lines = []


def read_tail(path: str) -> str:
    """Return the last lines of a worker's file, without markers."""
    try:
        with open(path, "rb") as opened:
            opened.seek(0, os.SEEK_END)
            opened.seek(max(0, opened.tell() - _TAIL_BYTES))
            data = opened.read()
    except OSError:
        return ""
    pairs = LineSplitter().feed(data, last=True)
    return "\n".join([line for _, line in pairs][-TAIL_LINES:])
