"""The head's calls to agents."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from sparkray import stacks
from sparkray.exceptions import SparkrayError
from sparkray.head.state.nodes import NodeTable
from sparkray.protocol import control
from sparkray.protocol.control import NodeInfo
from sparkray.protocol.stacks import ListStacks, ProcessStacks, StackList
from sparkray.transport.client import Peer
from sparkray.transport.tls import TLSFiles

#: How long agents may take to ask all their runtimes.
LIST_S: Final = 5.0


class AgentPeers:
    """Connections to the agents of all nodes, made on first use.

    Args:
        nodes: says where they are.
        token, tls: the cluster's.
        is_process: the head has this process to itself.
    """

    def __init__(
        self,
        nodes: NodeTable,
        token: bytes,
        tls: TLSFiles | None,
        *,
        is_process: bool = False,
    ) -> None:
        self._nodes, self._token, self._tls = nodes, token, tls
        self._is_process = is_process
        self._peers: dict[bytes, Peer] = {}

    async def call(
        self, node_id: bytes, method: str, request: Any, timeout_s: float
    ) -> Any:
        """Call an agent.

        Raises:
            ConnectionError: it is dead, unknown, or does not answer.
            Exception: what its method raised.
        """
        info = self._nodes.get(node_id)
        if info is None or not info.alive:
            raise ConnectionError(f"node {node_id.hex()} is dead or unknown")
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = Peer(info.agent, self._token, self._tls)
        answer_type = control.AGENT_CALLS[method][1]
        return await peer.call("Agent", method, request, answer_type, timeout_s)

    async def list_objects(self) -> control.ObjectList:
        """Ask all agents at once; those that do not answer in time are named."""
        total = control.ObjectList([], {}, [])
        answers, total.missing = await self._ask_all("ListObjects", control.ListObjects)
        for answer in answers:
            total.rows += answer.rows
            total.store_used_bytes |= answer.store_used_bytes
        return total

    async def list_stacks(self) -> StackList:
        """Ask all agents at once; those that do not answer in time are named."""
        answers, missing = await self._ask_all("ListStacks", ListStacks)
        processes = [p for answer in answers for p in answer.processes]
        if self._is_process:
            own = await asyncio.to_thread(stacks.of_threads)
            host_name = socket.gethostname()
            processes.insert(0, ProcessStacks("head", host_name, os.getpid(), own))
        return StackList(processes, missing)

    async def has_ended(self, node_id: bytes, timeout_s: float) -> bool:
        """Whether an agent's host says that nobody listens at its address.  A host that
        says nothing may be cut off."""
        info = self._nodes.get(node_id)
        host, _, port = info.agent.rpartition(":") if info is not None else ("",) * 3
        if not port:
            return False
        try:
            connecting = asyncio.open_connection(host.strip("[]"), int(port))
            _, writer = await asyncio.wait_for(connecting, timeout_s)
        except ConnectionRefusedError:
            return True
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return False

    async def _ask_all(
        self, method: str, request: Callable[[], Any]
    ) -> tuple[list[Any], list[str]]:
        """Return what the agents answer, and who does not, with the reason."""
        answers: list[Any] = []
        missing: list[str] = []

        async def ask(node: NodeInfo) -> None:
            try:
                answers.append(await self.call(node.node_id, method, request(), LIST_S))
            except (SparkrayError, ConnectionError, TimeoutError) as error:
                missing.append(f"{node.host_name} {node.node_id.hex()[:8]}: {error}")

        await asyncio.gather(*map(ask, self._nodes.alive()))
        late = [name for answer in answers for name in answer.missing]
        return answers, missing + late

    async def forget(self, node_id: bytes) -> None:
        """Close the connection to a node that is dead."""
        if (peer := self._peers.pop(node_id, None)) is not None:
            await peer.close()

    async def close(self) -> None:
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.close()
