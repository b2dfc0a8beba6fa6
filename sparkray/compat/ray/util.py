"""`ray.util` by its names, each loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sparkray.util import as_completed, list_named_actors

#: Name -> the module it is in, or that it is.
_NAMES: Final = {
    "ActorPool": "sparkray.util.actor_pool",
    "inspect_serializability": "sparkray.util.serialization",
    "placement_group": "sparkray.util.placement_group",
    "remove_placement_group": "sparkray.util.placement_group",
    "placement_group_table": "sparkray.util.placement_group",
    "get_placement_group": "sparkray.util.placement_group",
    "get_current_placement_group": "sparkray.util.placement_group",
}
_MODULES: Final = {
    "actor_pool": "sparkray.util.actor_pool",
    "joblib": "sparkray.util.joblib",
    "multiprocessing": "sparkray.multiprocessing",
    "queue": "sparkray.util.queue",
    "scheduling_strategies": "sparkray.util.scheduling_strategies",
    "state": "sparkray.util.state",
}

__all__ = ["as_completed", "list_named_actors"]


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name in _NAMES:
            return getattr(import_module(_NAMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("sparkray."):
            raise
    raise AttributeError(
        f"sparkray.compat.ray.util has no {name!r}; docs/compatibility.md lists what"
        " it has"
    )
