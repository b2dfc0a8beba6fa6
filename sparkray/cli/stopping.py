"""Stops nodes of this host: exactly those it is given, and whatever runs under them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from sparkray.launch import discovery, process
from sparkray.launch.discovery import Node

_POLL_S = 0.05


def stop(nodes: Sequence[Node], *, timeout_s: float, force: bool) -> list[Node]:
    """Ask nodes to end, all but the head first, and wait.

    Args:
        timeout_s: how long they may take.
        force: end by SIGKILL those that take longer, with all their processes.

    Returns:
        those that still run.
    """
    began_unix_s = time.time()
    for node in sorted(nodes, key=lambda node: node.is_head):
        _signal(node.pid, signal.SIGTERM, began_unix_s)
    left = _wait(nodes, timeout_s, began_unix_s)
    if not force or not left:
        return left
    for node in left:
        for pid in [node.pid, *process.processes_of(node.pid)]:
            _signal(pid, signal.SIGKILL, None)
    return _wait(left, timeout_s, began_unix_s)


def _wait(nodes: Sequence[Node], timeout_s: float, since_unix_s: float) -> list[Node]:
    deadline = time.monotonic() + timeout_s
    while True:
        left = [n for n in nodes if discovery.is_running(n.pid, since_unix_s)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def _signal(pid: int, number: signal.Signals, since_unix_s: float | None) -> None:
    """Send a signal; to a daemon only if it still is the one that was found."""
    if since_unix_s is None or discovery.is_running(pid, since_unix_s):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
