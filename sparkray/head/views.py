"""Sends all agents the view of the cluster, soon after it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sparkray.head.outbox import Outbox
from sparkray.head.state.nodes import NodeTable
from sparkray.protocol import codec, control
from sparkray.protocol.control import DownItem

#: Changes are gathered for this long, and for longer the more nodes there are.
VIEW_DELAY_S: Final = 0.02
VIEW_DELAY_PER_NODE_S: Final = 0.001


class Views:
    """Used by the loop only.

    Args:
        nodes: what there is to see.
        outboxes: of all open streams.
    """

    def __init__(self, nodes: NodeTable, outboxes: Callable[[], list[Outbox]]) -> None:
        self._nodes, self._outboxes = nodes, outboxes
        self._timer: asyncio.TimerHandle | None = None
        self._last = b""

    def encoded(self) -> bytes:
        return codec.encode(DownItem(view=control.ClusterView(self._nodes.alive())))

    def changed(self) -> None:
        if self._timer is None:
            count = len(self._outboxes())
            delay_s = max(VIEW_DELAY_S, VIEW_DELAY_PER_NODE_S * count)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._send)

    def stop(self) -> None:
        """Repeatable."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        self._timer = None
        view = self.encoded()
        if view != self._last:
            self._last = view
            for outbox in self._outboxes():
                outbox.put_view(view)
