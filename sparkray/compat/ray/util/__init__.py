"""`ray.util` by its names."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sparkray.compat.ray.util.actor_pool import ActorPool
from sparkray.compat.ray.util.helpers import (
    as_completed,
    get_node_ip_address,
    inspect_serializability,
    map_unordered,
)

# As in Ray, the function hides the module of its name; ``import`` finds both.
from sparkray.compat.ray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from sparkray.util import list_named_actors

__all__ = [
    "ActorPool",
    "as_completed",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

#: Loaded on first use; `import` finds them as well.
_MODULES: Final = ("joblib", "queue", "scheduling_strategies", "state")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"sparkray.compat.ray.util has no {name!r}; docs/compatibility.md lists what"
        " it has"
    )
