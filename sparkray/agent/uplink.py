"""The agent's connections to the head and to other agents.

One stream to the head: reports and log lines go up; the cluster's view, deaths and the
logs of our drivers come down.  If it breaks, the agent registers again; what runs here
goes on meanwhile, and calls wait a while for the head to come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkray.exceptions import ClusterError, ProtocolError, SparkrayError
from sparkray.protocol import codec, control
from sparkray.transport import tls

if TYPE_CHECKING:
    from sparkray.transport.client import Peer

_log = logging.getLogger(__name__)

#: What changed is told after this time, together with what changes meanwhile.
DEBOUNCE_S = 0.02
#: Deadline of calls to the head.
HEAD_CALL_S = 30.0
#: Between attempts to reach a head that is away: first and longest pause.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
#: For so long calls wait for a head that is away: it may be starting again.
AWAY_S = 15.0
#: Calls that do not wait for it, as they may not be made twice.
NOT_REPEATED = frozenset({"DrainNode", "Shutdown"})
#: How long the last log lines of a node that ends may take.
LAST_LOGS_S = 0.3
#: Log batches that wait for the head; older ones are dropped.
MAX_LOG_BATCHES = 1_000

CALLS = control.HEAD_CALLS | control.HEAD_AGENT_CALLS


@dataclass(frozen=True, slots=True)
class UplinkEvents:
    """Whom the uplink tells and asks."""

    register: Callable[[], control.RegisterNode]
    registered: Callable[[], list[control.AddJob]]  #: what to tell a head anew
    report: Callable[[], control.NodeReport]
    rejoined: Callable[[], None]  #: a head that was away knows this node again
    item: Callable[[control.DownItem], None]
    cast_out: Callable[[str], None]  #: the head does not want this node any more


class Uplink:
    """Calls to the head and to peers, and the stream."""

    def __init__(
        self, token: bytes, report_interval_s: float, on: UplinkEvents
    ) -> None:
        self._token, self._interval_s, self._on = token, report_interval_s, on
        self._tls = tls.from_environment(os.environ)
        self._head: Peer | None = None
        self.head_address = ""
        self.warnings: list[str] = []  #: what the head said when it took us in
        self._peers: dict[bytes, tuple[str, Peer]] = {}
        self._addresses: dict[bytes, str] = {}
        self._logs: deque[control.LogBatch] = deque(maxlen=MAX_LOG_BATCHES)
        self._wake = asyncio.Event()
        self._stream: asyncio.Task[None] | None = None

    async def join(self, head: Peer) -> None:
        """Register at the head and open the stream.

        Raises:
            ConnectionError: it does not answer.
            ProtocolError: it refuses this node.
        """
        self._head, self.head_address = head, head.address
        await self._register()
        self._stream = asyncio.ensure_future(self._stream_for_ever())

    async def call(
        self, method: str, request: Any, timeout_s: float = HEAD_CALL_S
    ) -> Any:
        """Call the head; one that is away is waited for, within ``timeout_s``.

        Raises:
            ClusterError: the head stays away.
            Exception: what the head's method raised.
        """
        if self._head is None:
            raise ClusterError("this node has not joined a cluster yet")
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        deadline, give_up = loop.time() + timeout_s, None
        while True:
            try:
                return await self._head.call(
                    *("Head", method, request, CALLS[method][1]),
                    max(0.001, deadline - loop.time()),
                )
            except ProtocolError:
                raise
            except (ConnectionError, TimeoutError) as error:
                now = loop.time()
                give_up = give_up or min(deadline, now + AWAY_S)
                if now + pause_s > give_up or method in NOT_REPEATED:
                    raise ClusterError(f"the head is away: {error}") from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def pass_on(self, method: str, body: bytes) -> bytes:
        """Make a runtime's call; its body and the answer's stay as they are.

        Raises:
            ProtocolError: runtimes have no such call.
            Exception: as `call`.
        """
        if method not in control.HEAD_CALLS:
            raise ProtocolError(f"the head has no call {method!r} for runtimes")
        request: Any = codec.decode_as(control.HEAD_CALLS[method][0], body)
        return codec.encode(await self.call(method, request))

    async def call_peer(
        self, node_id: bytes, method: str, request: Any, timeout_s: float
    ) -> Any:
        """Call another agent.

        Raises:
            ConnectionError: it does not answer, or is no living node.
            Exception: what its method raised.
        """
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionError(f"node {node_id.hex()} is dead or unknown")
        known = self._peers.get(node_id)
        if known is None or known[0] != address:
            from sparkray.transport.client import Peer

            known = self._peers[node_id] = (
                address,
                Peer(address, self._token, self._tls),
            )
        answer_type = control.AGENT_CALLS[method][1]
        return await known[1].call("Agent", method, request, answer_type, timeout_s)

    def know(self, nodes: list[control.NodeInfo]) -> None:
        self._addresses = {node.node_id: node.agent for node in nodes if node.alive}

    async def forget(self, node_id: bytes) -> None:
        self._addresses.pop(node_id, None)
        known = self._peers.pop(node_id, None)
        if known is not None:
            await known[1].close()

    def changed(self) -> None:
        """Something that the head should know changed."""
        self._wake.set()

    def send_logs(self, batch: control.LogBatch) -> None:
        self._logs.append(batch)
        self._wake.set()

    async def leave(self) -> None:
        """End the stream, once the last log lines are out.  Repeatable."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_LOGS_S
        while self._logs and not stream.done() and loop.time() < deadline:
            await asyncio.sleep(DEBOUNCE_S)
        stream.cancel()
        await asyncio.wait([stream])

    async def stop(self) -> None:
        """Close all connections."""
        await self.leave()
        for _, peer in self._peers.values():
            await peer.close()

    async def register_again(self) -> None:
        """Tell the head of a change in what it was told at first."""
        with contextlib.suppress(ClusterError, ConnectionError, TimeoutError):
            await self._register()

    async def _register(self) -> None:
        assert self._head is not None
        request = self._on.register()
        registered: control.NodeRegistered = await self._head.call(
            "Head", "RegisterNode", request, control.NodeRegistered, HEAD_CALL_S
        )
        self._interval_s = min(self._interval_s, registered.report_interval_s)
        for warning in registered.warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                _log.warning("%s", warning)

    async def _stream_for_ever(self) -> None:
        assert self._head is not None
        while True:
            try:
                async for item in self._head.stream(
                    "Head", "Connect", self._items(), control.DownItem
                ):
                    self._on.item(item)
            except (SparkrayError, ConnectionError, TimeoutError) as error:
                _log.info("the stream to the head broke: %s", error)
            try:
                await self._rejoin()
            except ProtocolError as error:
                self._on.cast_out(str(error))
                return

    async def _rejoin(self) -> None:
        """Register again, as soon as the head is there.

        Raises:
            ProtocolError: it does not want this node any more.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            try:
                await self._register()
                for job in self._on.registered():
                    await self.call("AddJob", job)
            except ProtocolError:
                raise
            except (SparkrayError, ConnectionError, TimeoutError) as error:
                _log.info("the head is away: %s", error)
            else:
                self._on.rejoined()
                return

    async def _items(self) -> AsyncIterator[control.UpItem]:
        while True:
            self._wake.clear()
            yield control.UpItem(report=self._on.report())
            while self._logs:
                yield control.UpItem(logs=self._logs.popleft())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_s)
                await asyncio.sleep(DEBOUNCE_S)
