"""The objects of a node: what runtimes ask of the store, copies from elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from sparkray.agent.options import AgentOptions
from sparkray.config import Settings

if TYPE_CHECKING:
    from sparkray.store.local import NodeStore

_log = logging.getLogger(__name__)

#: Deadline for telling another node what to free.
FREE_CALL_S = 10.0


class ObjectDesk:
    """Serves the store's messages.

    Args:
        limit_bytes: of the store.
        call_peer: calls another agent: node id, method, request, deadline in seconds.
        flight_of: returns ``host:port`` of a node's Flight server, "" if none is known.
        spawn: runs a coroutine beside everything else.
        used_changed: called with the change, in bytes, of what is used.
    """

    def __init__(
        self,
        options: AgentOptions,
        settings: Settings,
        token: bytes,
        *,
        limit_bytes: int,
        call_peer: Callable[..., Coroutine[Any, Any, Any]],
        flight_of: Callable[[bytes], str],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        used_changed: Callable[[int], None],
    ) -> None:
        self._options, self._settings, self._token = options, settings, token
        self._limit_bytes = limit_bytes
        self._call_peer, self._flight_of = call_peer, flight_of
        self._spawn, self._used_changed = spawn, used_changed
        self._store: NodeStore | None = None
        self.flight = ""
        self._flight_server: Any = None
        self._fetching: dict[bytes, asyncio.Task[None]] = {}
        self._told_bytes = 0

    def start(self) -> None:
        """Make the store, empty."""
        try:
            from sparkray.store.local import NodeStore
        except ModuleNotFoundError:
            return
        options, settings = self._options, self._settings
        spill_dir = settings.spill_dir or f"{options.session_dir}/spill"
        self._store = NodeStore(
            options.segment_dir, self._limit_bytes, spill_dir, settings
        )

    @property
    def used_bytes(self) -> int:
        return self._store.usage().used_bytes if self._store else 0

    def receive(self, client: bytes, message: Any) -> Coroutine[Any, Any, Any] | None:
        return None

    def client_gone(self, client: bytes) -> None:
        pass

    def free(self, object_ids: list[bytes]) -> None:
        pass

    async def serve_flight(self) -> bool:
        return False

    async def close(self) -> None:
        if self._store:
            await self._store.close()
