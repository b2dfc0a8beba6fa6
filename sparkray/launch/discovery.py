"""Which nodes run on this host: the files that agents leave when they are ready.

    <temp_dir>/<cluster id>-<node id>/agent.json              sparkray start, init
    <temp_dir>/waiting-<node id>.json                         its head is not there yet
    <temp_dir>/<name>/<cluster id>-<node id>/agent.json       sparkray.testing.Cluster

The second level is searched only for a cluster that is asked for by its address.  A
file counts while the process that it names lives, is the one that wrote it, and is
ours.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkray.config import Settings
from sparkray.transport import auth

FILE_NAME = "agent.json"
WAITING = "waiting-*.json"
#: The start of a process and the time of a file are read from different clocks.
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True)
class Node:
    """A node that runs on this host."""

    cluster_id: str
    node_id: str  #: in hexadecimal
    host: str  #: address of this node for the others
    head: str  #: ``host:port``
    agent_socket: str
    pid: int
    host_name: str
    version: str
    is_head: bool  #: the head runs here, as a child or in the same process
    token_file: str
    session_dir: str
    local: bool  #: private to the driver that started it
    owned: bool = False  #: ends with the program that started it
    warnings: tuple[str, ...] = ()
    python: str = ""
    log_dir: str = ""  #: "" for ``logs`` in the session directory
    head_pid: int = 0  #: process of the head, if that is here
    waiting: bool = False  #: for its head; then much of the rest is not known yet

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Node:
        """Build one from what an agent wrote.

        Raises:
            KeyError: a field is missing.
        """
        return cls(
            cluster_id=str(fields["cluster_id"]),
            node_id=str(fields["node_id"]),
            host=str(fields["host"]),
            head=str(fields["head"]),
            agent_socket=str(fields["agent_socket"]),
            pid=int(fields["pid"]),
            host_name=str(fields["host_name"]),
            version=str(fields["version"]),
            is_head=bool(fields["is_head"]),
            token_file=str(fields["token_file"]),
            session_dir=str(fields["session_dir"]),
            local=bool(fields.get("local", False)),
            owned=bool(fields.get("owned", False)),
            warnings=tuple(map(str, fields.get("warnings", ()))),
            python=str(fields.get("python", "")),
            log_dir=str(fields.get("log_dir", "")),
            head_pid=int(fields.get("head_pid", 0)),
            waiting=bool(fields.get("waiting", False)),
        )

    def token(self) -> bytes:
        """Read the cluster's token.

        Raises:
            OSError: the node has ended meanwhile.
        """
        return auth.read_token(self.token_file)


def default_temp_dir() -> Path:
    """Return where this user's session directories are, existing or not."""
    chosen = Settings.from_environment().temp_dir
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"sparkray-{os.getuid()}"


def nodes_on_this_host(
    temp_dir: Path | None = None, *, deep: bool = False
) -> list[Node]:
    """Return the nodes that run here now, a cluster's head before its other nodes.

    Args:
        temp_dir: parent of session directories; default: this user's.
        deep: look one level deeper too.
    """
    parent = temp_dir or default_temp_dir()
    patterns = [f"*/{FILE_NAME}", *([f"*/*/{FILE_NAME}"] if deep else [])]
    found = [_read(path) for pattern in patterns for path in parent.glob(pattern)]
    nodes = [node for node in found if node is not None]
    return sorted(nodes, key=lambda node: (node.cluster_id, not node.is_head, node.pid))


def waiting_on_this_host(temp_dir: Path | None = None) -> list[Node]:
    """Return the nodes that wait here for their head to appear."""
    found = map(_read, sorted((temp_dir or default_temp_dir()).glob(WAITING)))
    return [node for node in found if node is not None]


def shared_clusters(nodes: Iterable[Node]) -> list[Node]:
    """Return one node of each cluster that a driver may join unasked."""
    first: dict[str, Node] = {}
    for node in nodes:
        if not node.local:
            first.setdefault(node.cluster_id, node)
    return list(first.values())


def with_head(nodes: Iterable[Node], address: str) -> list[Node]:
    """Return those whose head listens at ``address``, however that is spelled."""
    return [node for node in nodes if same_address(node.head, address)]


def same_address(one: str, other: str) -> bool:
    if one == other:
        return True
    (host, _, port), (other_host, _, other_port) = (
        one.rpartition(":"),
        other.rpartition(":"),
    )
    return port == other_port and bool(_numeric(host) & _numeric(other_host))


def parse_address(address: object) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        TypeError: not text.
        ValueError: not of that form.
    """
    if not isinstance(address, str):
        raise TypeError(f"an address is text like 'host:port', not {address!r}")
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 65536
    if not (colon and host and "/" not in host and is_port):
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def _numeric(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {str(entry[4][0]) for entry in found}


def _read(path: Path) -> Node | None:
    """Return the node that a file tells of; None if that has ended or is not ours."""
    try:
        written = path.stat()
        node = Node.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if written.st_uid != os.getuid() or node.host_name != socket.gethostname():
        return None
    return node if is_running(node.pid, written.st_mtime) else None


def is_running(pid: int, since_unix_s: float) -> bool:
    """Tell whether ``pid`` is our node daemon and has run since then.

    A process id is used again after a while: the command line and the start time say
    whether this is still the same process.
    """
    try:
        process = Path(f"/proc/{pid}")
        if process.stat().st_uid != os.getuid():
            return False
        command = (process / "cmdline").read_bytes()
        stat = (process / "stat").read_text()
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X") or b"sparkray" not in command:
        return False
    started_unix_s = _boot_unix_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started_unix_s <= since_unix_s + _CLOCK_SLACK_S


def _boot_unix_s() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
