"""SIGINT and SIGTERM as something to read, not as an exception at any moment.

A command that starts a process must not be interrupted between the start and the line
that remembers it: so signals only leave a byte in a pipe, where whoever waits looks.
"""

from __future__ import annotations

import os
import select
import signal
from typing import Final

_ENDS: Final = (signal.SIGINT, signal.SIGTERM)


class EndSignals:
    """From its creation to the end of the process, both signals are only noted; one
    that the shell has us ignore stays ignored.

    Attributes:
        fd: readable once a signal has come.
    """

    def __init__(self) -> None:
        self.fd, write = os.pipe()
        for end in (self.fd, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _noted)

    def watch_children(self) -> None:
        """Let `wait` return also when a child process ends."""
        signal.signal(signal.SIGCHLD, _noted)

    def came(self) -> bool:
        """Return whether there is a signal to `wait` for."""
        return bool(select.select([self.fd], [], [], 0)[0])

    def wait(self) -> bool:
        """Wait for signals; return whether one asks for the end."""
        select.select([self.fd], [], [])
        return not set(_ENDS).isdisjoint(os.read(self.fd, 4096))

    def ignore(self) -> None:
        """From now on nothing is left to interrupt."""
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)


def _noted(_number: int, _frame: object) -> None:
    """The byte is in the pipe already."""
