"""Imports of what only the driver has: modules beside its script, added files.

The last place where an import looks.  What it finds comes from the agent, which gets it
from the driver as a package and keeps it unpacked on this node.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from sparkray.exceptions import SparkrayError
from sparkray.protocol.messages import FindModule
from sparkray.runtime.core import Runtime

_log = logging.getLogger("sparkray")


class DriverModules(MetaPathFinder):
    """Finds modules at the top that no other finder found.

    Not for forked children, which have no connection.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._pid = runtime, os.getpid()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if path is not None or os.getpid() != self._pid:
            return None
        directory = self._ask(fullname)
        return PathFinder.find_spec(fullname, [directory]) if directory else None

    def _ask(self, name: str) -> str:
        shared = self._runtime.shared
        if shared.loop.on_thread or shared.lock.is_held() or shared.closed:
            return ""  # the answer could not come
        try:
            answer: Any = shared.agent.call(lambda call: FindModule(call, name))
        except (SparkrayError, OSError) as error:  # the import fails as without us
            _log.warning("cannot get module %r from the driver: %s", name, error)
            return ""
        return str(answer.place)


def install(runtime: Runtime) -> None:
    """Let this worker's imports find the driver's modules."""
    sys.meta_path.append(DriverModules(runtime))
