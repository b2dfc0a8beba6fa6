"""Where sparkray's own messages appear."""

from __future__ import annotations

import logging
import sys
from typing import Any

_log = logging.getLogger("sparkray")


class CurrentStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at the time, as notebooks change it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def show_messages(level: int | str) -> None:
    """Show sparkray's messages unless the program has its own way with them."""
    ours = [h for h in _log.handlers if isinstance(h, CurrentStderr)]
    if not ours and not _log.handlers and not logging.getLogger().handlers:
        handler = CurrentStderr()
        handler.setFormatter(logging.Formatter("sparkray: %(message)s"))
        _log.addHandler(handler)
        _log.propagate = False
        ours = [handler]
    if ours:
        _log.setLevel(level.upper() if isinstance(level, str) else level)
