"""Time-outs as moments.  Pure."""

from __future__ import annotations

import threading
import time
from typing import Final

#: Nothing can wait longer (some hundred years): it is as good as no limit.
LONGEST_S: Final = threading.TIMEOUT_MAX


def limit_of(timeout: float | None) -> float | None:
    """Return the time-out; None, no limit, where it is longer than any wait."""
    return None if timeout is None or timeout >= LONGEST_S else timeout


def deadline_after(timeout: float | None) -> float | None:
    """Return when a time-out that begins now ends, by the monotonic clock."""
    limit_s = limit_of(timeout)
    return None if limit_s is None else time.monotonic() + limit_s
