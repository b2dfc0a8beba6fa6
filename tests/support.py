"""What tests with real processes need: polling, signs between processes, drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparkray

ROOT = Path(sparkray.__file__).parents[1]
POLL_S = 0.02


def until(condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "") -> Any:
    """Return the first true value of ``condition``.

    Raises:
        AssertionError: there was none in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what or "condition not reached"
        time.sleep(POLL_S)
    return value


def quiet(condition: Callable[[], bool], for_s: float = 0.5) -> bool:
    """Whether ``condition`` holds all the time: for what must not happen."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(POLL_S)
    return True


class Tally:
    """Lines that processes append to a file, each whole."""

    def __init__(self, directory: Path) -> None:
        self._path = tempfile.mktemp(dir=directory)

    def add(self, line: object = "") -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def lines(self) -> list[str]:
        try:
            return Path(self._path).read_text().splitlines()
        except FileNotFoundError:
            return []

    def count(self) -> int:
        return len(self.lines())


class Gate:
    """Closed until somebody opens it."""

    def __init__(self, directory: Path) -> None:
        self._path = tempfile.mktemp(dir=directory)

    def open(self) -> None:
        Path(self._path).touch()

    def is_open(self) -> bool:
        return os.path.exists(self._path)

    def wait(self, timeout_s: float = 60.0) -> None:
        until(self.is_open, timeout_s, "the gate stays closed")


def driver_environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def run_driver(
    code: str, *, timeout_s: float = 60.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a driver script to its end."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=driver_environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
