"""Scheduling strategies beside the words ``"DEFAULT"`` and ``"SPREAD"``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkray.api.placement_handle import PlacementGroup
from sparkray.ids import NODE_ID_BYTES
from sparkray.resources import Vector, describe, fits, from_user


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Run on this node.

    Args:
        node_id: in hexadecimal, as in ``nodes()[i]["NodeID"]``.
        soft: run elsewhere when the node is gone or could never run the task; without
            it the task fails then.

    Raises:
        TypeError: ``node_id`` is not text, or ``soft`` not a bool.
        ValueError: ``node_id`` is not the hexadecimal form of a node id.
    """

    node_id: str
    soft: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.node_id, str):
            raise TypeError(f"node_id must be hexadecimal text, not {self.node_id!r}")
        if not isinstance(self.soft, bool):
            raise TypeError(f"soft must be a bool, not {self.soft!r}")
        try:
            raw = bytes.fromhex(self.node_id)
        except ValueError:
            raw = b""
        if len(raw) != NODE_ID_BYTES:
            raise ValueError(
                f"{self.node_id!r} is no node id: expected {2 * NODE_ID_BYTES}"
                " hexadecimal digits, as in nodes()[0]['NodeID']"
            )


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Run inside a placement group, with what it has reserved.

    Args:
        placement_group: None: outside of any group, even where the running task's group
            captures its child tasks.
        placement_group_bundle_index: which bundle; -1: any that has room.
        placement_group_capture_child_tasks: tasks and actors that are submitted from
            inside run in the group too, unless they have a strategy of their own.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: the group has no such bundle.
    """

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool = False

    def __post_init__(self) -> None:
        group: Any = self.placement_group
        index: Any = self.placement_group_bundle_index
        if group is not None and not isinstance(group, PlacementGroup):
            raise TypeError(f"placement_group must be one, not {group!r:.100}")
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(
                f"placement_group_bundle_index must be a whole number, not {index!r}"
            )
        given: Any = self.placement_group_capture_child_tasks
        if not isinstance(given, bool):
            raise TypeError(
                f"placement_group_capture_child_tasks must be a bool, not {given!r}"
            )
        if group is None and index != -1:
            raise ValueError("placement_group_bundle_index without a placement group")
        if group is not None and not -1 <= index < group.bundle_count:
            raise ValueError(
                f"the placement group has no bundle {index}: its bundles are 0 to"
                f" {group.bundle_count - 1}; -1 means any"
            )

    def check_room(self, needs: Vector) -> None:
        """Raise ValueError if no bundle could ever hold these resources."""
        if self.placement_group is None:
            return
        specs = self.placement_group.bundle_specs
        index = self.placement_group_bundle_index
        chosen = specs if index == -1 else [specs[index]]
        if not any(fits(needs, from_user(spec)) for spec in chosen):
            which = "no bundle" if index == -1 else f"not into bundle {index}"
            raise ValueError(
                f"{describe(needs)} fits {which} of the placement group, whose bundles"
                f" are {specs}"
            )
