"""Which cluster `init` means: one that runs, found by its address or on this host, or a
new one of its own.

    address given            -> that cluster, or ConnectionError; nothing is started
    SPARKRAY_ADDRESS         -> as if given
    "local"                  -> a new private cluster
    "auto"                   -> the one cluster that runs on this host, or an error
    nothing                  -> the one cluster that `sparkray start` runs on this host;
                                without one, or asked for CPUs, a new private cluster

A driver talks to the cluster through the agent of its own host, so a cluster can be
joined where one of its nodes runs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkray.exceptions import ProtocolError
from sparkray.launch import discovery
from sparkray.launch.discovery import Node
from sparkray.protocol.versions import Versions, difference, own_versions

ADDRESS_VARIABLE = "SPARKRAY_ADDRESS"
_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Start:
    """Start a private cluster; ``why`` is for the log."""

    why: str


@dataclass(frozen=True)
class Join:
    """Join through this node; ``why`` is for the log."""

    node: Node
    why: str


def choose(
    address: str | None,
    *,
    own_resources: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> Start | Join:
    """Decide where a session goes.

    Args:
        address: as given to `init`.
        own_resources: the arguments given to `init` that describe a new cluster.

    Raises:
        ConnectionError: the cluster that was asked for cannot be joined.
        TypeError, ValueError: ``address`` is none, or does not go with the arguments.
    """
    source = "address"
    if address is None and environment.get(ADDRESS_VARIABLE):
        address, source = environment[ADDRESS_VARIABLE], ADDRESS_VARIABLE
    if address is None and not own_resources:
        return _unasked()
    if address is None or address == "local":
        return Start("asked for" if address else f"{', '.join(own_resources)} given")
    if own_resources:
        raise ValueError(
            f"{', '.join(own_resources)} describe a new cluster, but {source}"
            f" {address!r} names one that runs: leave them out, or pass address='local'"
        )
    return _auto() if address == "auto" else named(address, source)


def _unasked() -> Start | Join:
    """Join what was started to be shared; a cluster that ends with another program
    (one on Spark, say) is joined by address or ``"auto"`` only."""
    nodes = [node for node in discovery.nodes_on_this_host() if not node.owned]
    clusters = discovery.shared_clusters(nodes)
    if len(clusters) == 1:
        return Join(clusters[0], "the one that runs on this host")
    if clusters:
        return Start(f"to choose from, by address: {_names(clusters)}")
    if waiting := discovery.waiting_on_this_host():
        heads = ", ".join(sorted({node.head for node in waiting}))
        return Start(f"a node here still waits for the head at {heads}")
    return Start("nothing on this host to join")


def _auto() -> Join:
    clusters = discovery.shared_clusters(discovery.nodes_on_this_host())
    if len(clusters) != 1:
        raise ConnectionError(
            _several(clusters)
            if clusters
            else "address 'auto': no cluster runs on this host; start one with"
            " `sparkray start --head`"
        )
    return Join(clusters[0], "the one that runs on this host")


def _names(clusters: list[Node]) -> str:
    return ", ".join(node.head for node in clusters)


def named(address: str, source: str) -> Join:
    """Return a node of the cluster at ``address``.

    Raises:
        ConnectionError: there is no such cluster, or no node of it here.
        ValueError: ``address`` is none.
    """
    host, port = discovery.parse_address(address)
    nodes = discovery.with_head(discovery.nodes_on_this_host(deep=True), address)
    if nodes:
        head_first = sorted(nodes, key=lambda node: not node.is_head)
        return Join(head_first[0], f"{source} {address}")
    try:
        socket.create_connection((host, port), _PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no sparkray cluster at {address} ({source}): {error}"
        ) from None
    raise ConnectionError(
        f"something listens at {address} ({source}), but no node of that cluster runs"
        f" on this host: start one with `sparkray start --address {address}`"
    )


def version_warnings(node: Node) -> list[str]:
    """Return what to know of a node that has other versions than this process.

    Raises:
        ProtocolError: they do not go together; names both.
    """
    ours = own_versions()
    theirs = Versions(node.python or ours.python, node.version)
    where = f"the node of {node.head} on this host"
    line = difference("this process", ours, where, theirs)
    if not ours.fits(theirs):
        raise ProtocolError(line)
    return [line] if line else []


def _several(clusters: Sequence[Node]) -> str:
    listed = ", ".join(node.head for node in clusters)
    return f"several clusters run on this host ({listed}): pass one of them as address"
