"""Ray's options of tasks and actors in our terms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

from sparkray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Options that change nothing here -> why.
WITHOUT_EFFECT: Final = {
    "accelerator_type": "nodes do not know theirs; use label_selector",
    "enable_task_events": "there are no such events",
    "enable_tensor_transport": "tensors travel as other objects do",
    "fallback_strategy": "give one label_selector that all good nodes fit",
    "object_store_memory": "a node's store is for all of its tasks",
    "_actor_generator_backpressure_num_objects": "give the methods their"
    " generator_backpressure_num_objects",
    "_labels": "tasks and actors have no labels",
    "_num_objects_per_yield": "each item is an object",
    "tensor_transport": "tensors travel as other objects do",
}
#: Options that make up a `PlacementGroupSchedulingStrategy`.
OF_GROUPS: Final = (
    "placement_group",
    "placement_group_bundle_index",
    "placement_group_capture_child_tasks",
)


def translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as `sparkray.remote` takes them.

    What has no effect is taken with a warning.

    Raises:
        ValueError: options that contradict one another.
    """
    ours = {name: given[name] for name in given if name not in OF_GROUPS}
    for name in WITHOUT_EFFECT.keys() & ours.keys():
        if ours.pop(name) is not None:
            text = f"the option {name} has no effect: {WITHOUT_EFFECT[name]}"
            warnings.warn(text, stacklevel=3)
    group = given.get("placement_group", "default")
    rest = [given.get(name) for name in OF_GROUPS[1:]]
    if isinstance(group, str) and group == "default":
        if rest[0] not in (None, -1) or rest[1]:
            raise ValueError(f"{OF_GROUPS[1]} and {OF_GROUPS[2]} need placement_group")
        return ours
    if ours.get("scheduling_strategy") is not None:
        raise ValueError("placement_group and scheduling_strategy: give one of them")
    index = -1 if rest[0] is None else rest[0]
    ours["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
        group, index, bool(rest[1])
    )
    return ours
