"""Progress in plain text, counted in the driver and in tasks alike.

    with tqdm(desc="fits", total=100) as bar:
        sparkray.get([fit.remote(part, bar) for part in parts])   # bar.update() inside

A bar that is sent gets an actor, which adds up what its copies count; the process that
made the bar draws it.  Names follow tqdm, which is not needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

import sparkray
from sparkray.exceptions import SparkrayError

__all__ = ["tqdm"]

_POLL_S: Final = 0.5
_LINE_S: Final = 5.0  #: between lines, where they cannot be overwritten


class tqdm:
    """Counts, and says how far it has got.

    Args:
        iterable: each item that it yields counts as one.
        desc: what is counted.
        total: how many there will be; default: the length of the iterable, if known.
        unit: what one is called.
        mininterval: seconds between two drawings, and between two messages of a copy.
        file: where to draw; default: `sys.stderr`.
        disable: draw nothing.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str = "",
        total: float | None = None,
        *,
        unit: str = "it",
        mininterval: float = 0.1,
        file: TextIO | None = None,
        disable: bool = False,
    ) -> None:
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)  # type: ignore[arg-type]
        self.iterable, self.desc, self.total = iterable, desc, total
        self.unit, self.mininterval, self.disable = unit, mininterval, disable
        self._file = file
        self._start_state(board=None, is_copy=False)

    def _start_state(self, *, board: Any, is_copy: bool) -> None:
        self._board, self._is_copy = board, is_copy
        self._own = self._others = 0.0  #: counted here, and by the copies
        self._unsent = 0.0  #: of a copy
        self._began_s = self._last_s = time.monotonic()
        self._lock = threading.RLock()  #: guards counting and drawing
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def n(self) -> float:
        """How many were counted, as far as is known here."""
        return self._own + self._others

    def update(self, n: float = 1) -> None:
        """Count ``n`` more."""
        with self._lock:
            self._own += n
            self._unsent += n
            if time.monotonic() - self._last_s >= self._interval_s():
                self._show()

    def set_description(self, desc: str = "") -> None:
        """Change what is said to be counted (in this process only)."""
        self.desc = desc

    def close(self) -> None:
        """Send or draw the last state.  Copies are asked no more."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._board is not None and not self._is_copy:
            with contextlib.suppress(SparkrayError):
                self._others = sparkray.get(self._board.total.remote(), timeout=10)
        with self._lock:
            last = self._show(last=True)
        if last is not None:
            with contextlib.suppress(SparkrayError):
                sparkray.get(last, timeout=10)  # counted before the task ends

    def __iter__(self) -> Iterator[Any]:
        if self.iterable is None:
            raise TypeError("this bar was made without an iterable")
        with self:
            for item in self.iterable:
                yield item
                self.update()

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.__dict__.get("_is_copy") and self._unsent and not self._closed.is_set():
            with contextlib.suppress(SparkrayError):
                self._show()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            if self._board is None:
                self._board = sparkray.remote(_Board).options(num_cpus=0).remote()
                self._watcher = threading.Thread(
                    target=self._watch, name="sparkray-progress", daemon=True
                )
                self._watcher.start()
        keys = ("desc", "total", "unit", "mininterval", "disable", "_board")
        return {key: getattr(self, key) for key in keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, iterable=None, _file=None)
        self._start_state(board=state["_board"], is_copy=True)

    def __str__(self) -> str:
        """Return the line that is drawn."""
        passed_s = time.monotonic() - self._began_s
        rate = self.n / passed_s if passed_s > 0 else 0.0
        count = f"{self.n:g}"
        if self.total:
            count += f"/{self.total:g} {100 * self.n / self.total:.0f}%"
        line = f"{count} {rate:.3g} {self.unit}/s"
        if self.total and rate and self.n < self.total:
            line += f", {(self.total - self.n) / rate:.0f} s left"
        return f"{self.desc}: {line}" if self.desc else line

    def _interval_s(self) -> float:
        if self._is_copy or self._stream().isatty():
            return self.mininterval
        return max(self.mininterval, _LINE_S)

    def _stream(self) -> TextIO:
        return self._file if self._file is not None else sys.stderr

    def _show(self, *, last: bool = False) -> Any:
        """Draw; a copy sends what it has counted and returns the ref of that."""
        self._last_s = time.monotonic()
        if self._is_copy:
            added, self._unsent = self._unsent, 0.0
            return self._board.add.remote(added) if added else None
        if not self.disable:
            stream = self._stream()
            begin, end = ("\r\x1b[K", "") if stream.isatty() else ("", "\n")
            print(begin + str(self), end="\n" if last else end, file=stream, flush=True)
        return None

    def _watch(self) -> None:
        """Draw what the copies count, until the bar is closed or the cluster left."""
        while not self._closed.is_set():
            try:
                wait = self._board.beyond.remote(self._others, _POLL_S)
                self._others = sparkray.get(wait)
            except SparkrayError:
                return
            with self._lock:
                is_time = time.monotonic() - self._last_s >= self._interval_s()
                if is_time and not self._closed.is_set():
                    self._show()


class _Board:
    """The actor: one sum."""

    def __init__(self) -> None:
        self._total = 0.0
        self._changed = asyncio.Event()

    async def add(self, n: float) -> None:
        self._total += n
        self._changed.set()

    async def total(self) -> float:
        return self._total

    async def beyond(self, seen: float, timeout_s: float) -> float:
        """Return the sum once it is another than ``seen``, or after a while."""
        if self._total == seen:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        return self._total
