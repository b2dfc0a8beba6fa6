"""Who started a daemon: told how the start went, watched for its end.

              ready pipe: one JSON line, then closed
the starter   <-------------------------------------  this process
              ------------------------------------->
              owner pipe: never written; its end is the starter's death
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from sparkray.exceptions import SparkrayError

_T = TypeVar("_T")


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

    def tell_error(self, error: Exception) -> None:
        """Tell why there is no node; what nobody foresaw is printed as well, with its
        traceback."""
        foreseen = isinstance(error, (OSError, ValueError, SparkrayError))
        if not foreseen:
            traceback.print_exception(error)
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = ": ".join(filter(None, (error.filename, error.strerror)))
        kind = type(error).__name__
        self.tell({"error": text, "kind": kind, "foreseen": foreseen})

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


async def unless(stop: asyncio.Future[str], work: Awaitable[_T]) -> _T | None:
    """Return what ``work`` returns, None if ``stop`` is settled before it is done."""
    task = asyncio.ensure_future(work)
    both: list[asyncio.Future[Any]] = [stop, task]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()  # it may have been done already


async def first(*waits: Awaitable[str]) -> str:
    """Return the result of whichever is done first; the others are cancelled."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()
