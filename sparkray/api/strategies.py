"""Scheduling strategies beside the words ``"DEFAULT"`` and ``"SPREAD"``."""

from __future__ import annotations

from dataclasses import dataclass

from sparkray.ids import NODE_ID_BYTES


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
