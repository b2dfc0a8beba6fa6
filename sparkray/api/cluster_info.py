"""What the cluster has: nodes and resources, as the head knows them."""

from __future__ import annotations

from typing import Any

from sparkray import resources
from sparkray.api import session
from sparkray.protocol.control import ListNodes, NodeInfo, NodeList


def nodes() -> list[dict[str, Any]]:
    """Return one dict a node, dead ones too.

    Keys: ``NodeID`` (hexadecimal), ``Alive``, ``NodeManagerAddress`` (host or IP that
    other nodes use), ``NodeManagerHostname``, ``NodeManagerPort``, ``NodeName``,
    ``Resources`` (what the node has, not what is free), ``Labels``, ``IsHead``,
    ``DeathReason`` ("" while it lives).
    """
    return [_row(node) for node in _list_nodes()]


def cluster_resources() -> dict[str, float]:
    """Return what the living nodes have, e.g. ``{"CPU": 8.0, "memory": 3.2e10}``.

    ``memory`` and ``object_store_memory`` are bytes.
    """
    alive = (node.total for node in _list_nodes() if node.alive)
    return resources.to_user(resources.total(alive))


def available_resources() -> dict[str, float]:
    """Return what is free on the living nodes; what is used up may be missing."""
    alive = (node.available for node in _list_nodes() if node.alive)
    free = resources.total(alive)
    return resources.to_user({name: units for name, units in free.items() if units > 0})


def _list_nodes() -> list[NodeInfo]:
    answer = session.ensure_runtime().head_call("ListNodes", ListNodes())
    assert isinstance(answer, NodeList)
    return answer.nodes


def _row(node: NodeInfo) -> dict[str, Any]:
    port = node.agent.rpartition(":")[2]
    return {
        "NodeID": node.node_id.hex(),
        "Alive": node.alive,
        "NodeManagerAddress": node.host,
        "NodeManagerHostname": node.host_name,
        "NodeManagerPort": int(port) if port.isdecimal() else 0,
        "NodeName": node.host_name,
        "Resources": resources.to_user(node.total) if node.alive else {},
        "Labels": dict(node.labels),
        "IsHead": node.is_head,
        "DeathReason": node.reason,
    }
