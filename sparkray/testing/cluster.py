"""Several nodes on this host, each real: its own agent, store and workers.

    with Cluster(head_node_args={"num_cpus": 2}) as cluster:
        second = cluster.add_node(num_cpus=2, resources={"second": 4})
        cluster.wait_for_nodes()
        sparkray.init(address=cluster.address)
        cluster.remove_node(second, allow_graceful=False)
        cluster.kill_head()

All nodes end when the process that made the `Cluster` does, however that happens.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkray.exceptions import ClusterError
from sparkray.launch import discovery, process, session_dir


class ClusterNode:
    """One node of a `Cluster`."""

    def __init__(self, started: process.NodeProcess, temp_dir: Path) -> None:
        self._started = started
        self._temp_dir = temp_dir

    @property
    def node_id(self) -> str:
        """In hexadecimal, as in ``nodes()[i]["NodeID"]``."""
        return self._started.node.node_id

    @property
    def pid(self) -> int:
        """Process id of the node's daemon."""
        return self._started.pid

    @property
    def session_dir(self) -> str:
        return self._started.node.session_dir

    @property
    def is_head(self) -> bool:
        return self._started.node.is_head

    @property
    def is_alive(self) -> bool:
        return self._started.poll() is None

    def stop(self) -> None:
        """End it in good order.  Repeatable."""
        self._started.stop()

    def kill(self) -> None:
        """End all its processes at once, as when its machine loses power.

        What was in its memory and its files is gone too.
        """
        self._started.kill()
        session_dir.sweep(self._temp_dir)

    def __repr__(self) -> str:
        role = "head node" if self.is_head else "node"
        return f"<{role} {self.node_id[:8]}, process {self.pid}>"


class Cluster:
    """A cluster of real nodes on this host.  A context manager: it ends with the block.

    Args:
        initialize_head: start the head node now.
        head_node_args: what the head node has, as for `add_node`.

    Raises:
        ClusterError: a node did not start.
    """

    def __init__(
        self,
        initialize_head: bool = True,
        head_node_args: Mapping[str, Any] | None = None,
    ) -> None:
        parent = process.make_private(discovery.default_temp_dir())
        self._temp_dir = Path(tempfile.mkdtemp(prefix="test-", dir=parent))
        self._nodes: list[ClusterNode] = []
        self._head: process.NodeProcess | None = None
        if head_node_args and not initialize_head:
            raise ValueError("head_node_args without initialize_head")
        if initialize_head:
            try:
                self.add_node(**(head_node_args or {}))
            except BaseException:
                self.shutdown()
                raise

    @property
    def address(self) -> str:
        """``host:port`` of the head, for `sparkray.init`."""
        return self._running_head().node.head

    @property
    def nodes(self) -> list[ClusterNode]:
        """The nodes that were added and not removed, the head first."""
        return list(self._nodes)

    @property
    def head_node(self) -> ClusterNode:
        self._running_head()
        return self._nodes[0]

    @property
    def head_pid(self) -> int:
        """Process id of the head itself, a child of the head node's daemon; after its
        death that of the next, as soon as there is one."""
        node_id = self._running_head().node.node_id
        for node in discovery.nodes_on_this_host(self._temp_dir):
            if node.node_id == node_id:
                return node.head_pid
        raise ClusterError("the head node has ended")

    def kill_head(self) -> int:
        """Kill the head's process, as a crash would; its node starts another.

        Returns:
            The process id that it had; `head_pid` differs once the next one serves.

        Raises:
            ClusterError: the head node has ended, or starts another head just now.
        """
        pid = self.head_pid
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            raise ClusterError("the head is dead already, the next starts") from None
        try:
            signal.pidfd_send_signal(end, signal.SIGKILL)
            select.select([end], [], [])
        finally:
            os.close(end)
        return pid

    @property
    def token_file(self) -> str:
        """File with the cluster's token."""
        return self._running_head().node.token_file

    def add_node(
        self,
        *,
        num_cpus: float = 1,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        object_store_memory: int = 100 << 20,
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ClusterNode:
        """Start one more node; the first is the head.  Returns when it has joined.

        Args:
            num_gpus: None: those of this host.
            labels: for `label_selector`.
            environment: variables for its processes, such as settings.

        Raises:
            ClusterError: it did not start; the message carries its output.
        """
        head = self._head
        variables = dict(environment or {})
        if head is not None:
            variables["SPARKRAY_TOKEN_FILE"] = head.node.token_file
        options = process.NodeOptions(
            head=head is None,
            address=None if head is None else head.node.head,
            host="127.0.0.1",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            object_store_memory=object_store_memory,
            labels=labels,
            temp_dir=self._temp_dir,
            environment=variables,
        )
        started = process.start_node(options)
        if head is None:
            self._head = started
        node = ClusterNode(started, self._temp_dir)
        self._nodes.append(node)
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """End a node.

        Args:
            allow_graceful: False: all its processes are killed at once.

        Raises:
            ValueError: it is not of this cluster, or was removed before.
        """
        if node not in self._nodes:
            raise ValueError(f"{node} is not in this cluster")
        self._nodes.remove(node)
        if node.is_head:
            self._head = None
        if allow_graceful:
            node.stop()
        else:
            node.kill()

    def wait_for_nodes(self, timeout: float = 30.0) -> None:
        """Wait until the head counts exactly the nodes of this cluster as alive.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds.
        """
        node = self._running_head().node
        expected = sorted(member.node_id for member in self._nodes)
        request = {
            "address": node.head,
            "token_file": node.token_file,
            "node_ids": expected,
            "timeout_s": timeout,
        }
        done = subprocess.run(  # so that gRPC stays out of this process, which may fork
            [sys.executable, "-m", "sparkray.testing.await_nodes"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=process.child_environment(),
        )
        if done.returncode == 2:
            raise TimeoutError(done.stdout.strip())
        if done.returncode:
            raise ClusterError(f"cannot ask the head:\n{done.stderr}")

    def shutdown(self) -> None:
        """End all nodes, the head last, and remove their files.  Repeatable."""
        while self._nodes:
            self._nodes.pop().stop()
        self._head = None
        shutil.rmtree(self._temp_dir, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    def _running_head(self) -> process.NodeProcess:
        if self._head is None:
            raise ValueError("this cluster has no head: add_node starts one")
        return self._head
