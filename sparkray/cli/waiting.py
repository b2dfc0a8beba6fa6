"""The file of a node whose head is not there yet: `sparkray stop` finds it by that.

    <root>/waiting-<node>.json      as `agent.json`, but for what is not known yet

It is locked for as long as the node waits, so that a sweep knows what is left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkray.launch.discovery import WAITING


class WaitingFile:
    """The file of one node; `remove` is repeatable.

    Args:
        about: as in a discovery file.
    """

    def __init__(self, root: Path, about: Mapping[str, Any]) -> None:
        name = WAITING.replace("*", about["node_id"][:8])
        self._path, draft = root / name, root / f".{name}"
        self._fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._fd, json.dumps(about).encode())
        draft.rename(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sweep(root: Path) -> None:
    """Remove the files of nodes that were killed while they waited."""
    for path in root.glob(WAITING):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
