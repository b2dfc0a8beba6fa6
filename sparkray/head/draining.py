"""Lets nodes go that nobody needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sparkray.exceptions import SparkrayError
from sparkray.head.placement import CallAgent
from sparkray.protocol.control import NodeInfo
from sparkray.protocol.draining import Drain, Drained

#: How long an agent may take to find out whether somebody needs it.
DRAIN_CALL_S: Final = 10.0


class DrainDesk:
    """Asks the agent, and tells it the end.

    Args:
        info: the node of an id, None if there is none.
        call_agent: (node id, method, request, seconds) -> answer.
        has_actors: whether actors would end with a node.
        leave: ends the node.
        keep: the node stays, and counts as used a moment ago.
    """

    def __init__(
        self,
        *,
        info: Callable[[bytes], NodeInfo | None],
        call_agent: CallAgent,
        has_actors: Callable[[bytes], bool],
        leave: Callable[[bytes], None],
        keep: Callable[[bytes], None],
    ) -> None:
        self._info, self._call_agent = info, call_agent
        self._has_actors, self._leave, self._keep = has_actors, leave, keep

    async def drain(self, node_id: bytes) -> str:
        """End a node if nobody needs it; return who does, "" if it leaves.

        Raises:
            KeyError: no such node is alive.
        """
        info = self._info(node_id)
        if info is None or not info.alive:
            raise KeyError(f"no node {node_id.hex()} is alive")
        reason = "the head" if info.is_head else await self._ask(node_id)
        if reason:
            self._keep(node_id)
        else:
            self._leave(node_id)
        return reason

    async def _ask(self, node_id: bytes) -> str:
        if self._has_actors(node_id):
            return "actors"
        try:
            answer: Drained = await self._call_agent(
                node_id, "Drain", Drain(), DRAIN_CALL_S
            )
        except (SparkrayError, ConnectionError, TimeoutError) as error:
            return f"its agent does not say: {error}"
        return answer.needed_by
