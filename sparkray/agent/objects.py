"""The objects of a node: what runtimes ask of the store, copies from elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from sparkray.agent.options import AgentOptions
from sparkray.config import Settings
from sparkray.exceptions import ObjectLostError, ProtocolError
from sparkray.ids import TASK_ID_BYTES
from sparkray.protocol import control
from sparkray.protocol import messages as m
from sparkray.store import sizing
from sparkray.store.local import NodeStore
from sparkray.transport import tls

if TYPE_CHECKING:
    from sparkray.store.flight import FlightStore

_log = logging.getLogger(__name__)

#: Deadline for telling another node what to free.
FREE_CALL_S: Final = 10.0
#: How long a node that holds an object may take to say where its Flight server is.
FLIGHT_WAIT_S: Final = 10.0
_FLIGHT_POLL_S: Final = 0.05


class ObjectDesk:
    """Serves the store's messages.

    Args:
        call_peer: calls another agent: node id, method, request, deadline in seconds.
        flight_of: returns ``host:port`` of a node's Flight server, "" if it has none
            yet, or is not known yet, None if it is dead.
        peers: returns the ids of the other nodes.
        spawn: runs a coroutine beside everything else.
        changed: called when more or less of the store is used.
        sealed: called when an object is complete.
    """

    def __init__(
        self,
        options: AgentOptions,
        settings: Settings,
        token: bytes,
        *,
        call_peer: Callable[..., Coroutine[Any, Any, Any]],
        flight_of: Callable[[bytes], str | None],
        peers: Callable[[], list[bytes]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
        sealed: Callable[[], None],
    ) -> None:
        self._options, self._settings = options, settings
        self._token = token.hex().encode()  # Flight shows it as text
        self._call_peer, self._flight_of = call_peer, flight_of
        self._peers = peers
        self._spawn, self._changed, self._sealed = spawn, changed, sealed
        self.limit_bytes = settings.object_store_memory or sizing.default_limit()
        self.warning = ""  #: what the user should know of where objects are kept
        self.flight = ""  #: ``host:port``, once it is served
        self._flight_store: FlightStore | None = None
        self._store: NodeStore | None = None

    def start(self) -> None:
        """Make the store, empty."""
        options, settings = self._options, self._settings
        directory, self.warning = sizing.choose_directory(
            options.segment_dir,
            os.path.join(options.session_dir, "objects"),
            self.limit_bytes,
        )
        if self.warning:
            _log.warning("%s", self.warning)
        spill_dir = settings.spill_dir or os.path.join(options.session_dir, "spill")
        self._store = NodeStore(directory, self.limit_bytes, spill_dir, settings)

    @property
    def store(self) -> NodeStore:
        assert self._store is not None, "the agent has not started"
        return self._store

    @property
    def used_bytes(self) -> int:
        return self.store.usage().used_bytes

    @property
    def has_originals(self) -> bool:
        """Whether objects are here that other nodes can have copies of only."""
        return self.store.has_originals

    def receive(self, client: bytes, message: Any) -> Coroutine[Any, Any, Any] | None:
        """Take one message of a runtime.

        Returns:
            for a call, what makes its answer.

        Raises:
            ProtocolError: not a message for the store, or not about its own inbox.
        """
        if isinstance(message, m.CreateObject):
            return self._create(client, message)
        if isinstance(message, m.PinObject):
            return self._pin(client, message)
        if isinstance(message, m.SealObject):
            self.store.seal(message.object_id, message.owner, client)
            self._sealed()
        elif isinstance(message, m.AbortObject):
            self.store.abort(message.object_id, client)
        elif isinstance(message, m.UnpinObjects):
            self.store.unpin(client, message.object_ids)
        elif isinstance(message, m.FreeObjects):
            if message.here:
                self.free(message.object_ids)
            for node_id in message.nodes:
                if node_id != self._options.node_id:
                    request = control.FreePeerObjects(message.object_ids)
                    self._spawn(self._free_at(node_id, request))
        elif isinstance(message, m.CloseInbox):
            self._close_inbox_everywhere(client, message)
        else:
            raise ProtocolError(f"the store takes no {type(message).__name__}")
        self._changed()
        return None

    def free(self, object_ids: list[bytes]) -> None:
        self.store.free(object_ids)
        self._changed()

    def keep(self, object_ids: list[bytes], job_id: bytes) -> None:
        """Keep these while the job lasts, though their owner may end before."""
        self.store.pass_on(object_ids, job_id)

    def free_owners(self, owners: list[bytes]) -> None:
        """Free what these runtimes owned: they are gone."""
        for owner in owners:
            self.store.free_owner(owner)
        self._changed()

    def close_inbox(self, prefix: bytes, keep: list[bytes]) -> None:
        self.store.close_inbox(prefix, keep)
        self._changed()

    def _close_inbox_everywhere(self, client: bytes, message: m.CloseInbox) -> None:
        if len(message.prefix) != TASK_ID_BYTES or message.prefix[:-8] != client:
            raise ProtocolError("an inbox is closed by its owner only")
        self.store.close_inbox(message.prefix, message.keep)
        for node_id in self._peers():
            request = control.FreePeerObjects(
                [], inbox=message.prefix, keep=message.keep
            )
            self._spawn(self._free_at(node_id, request))

    def client_gone(self, client: bytes, peers: list[bytes]) -> None:
        """A runtime is dead: drop its pins, what it was writing, what it owned.

        Args:
            peers: nodes that may hold objects of it too.
        """
        self.store.forget_client(client)
        self.free_owners([client])
        for node_id in peers:
            request = control.FreePeerObjects([], owners=[client])
            self._spawn(self._free_at(node_id, request))

    async def _create(self, client: bytes, message: m.CreateObject) -> m.ObjectCreated:
        path, capacity_bytes = await self.store.create(
            client, message.object_id, message.size_bytes
        )
        return m.ObjectCreated(message.call, path, capacity_bytes)

    async def _pin(self, client: bytes, message: m.PinObject) -> m.ObjectPinned:
        own = self._options.node_id
        sources = [source for source in message.sources if source.node_id != own]

        async def fetch(object_id: bytes) -> None:
            await self._fetch(object_id, sources)

        path, size_bytes = await self.store.pin(
            client, message.object_id, fetch if sources else None
        )
        return m.ObjectPinned(message.call, path, size_bytes)

    async def _fetch(self, object_id: bytes, sources: list[m.ObjectSource]) -> None:
        """Copy an object from the first source that has it."""
        errors: list[str] = []
        for source in sources:
            try:
                address = await self._address_of(source)
                await self.store.pull(object_id, address, self._token)
                return
            except (ObjectLostError, ConnectionError, TimeoutError) as error:
                errors.append(f"node {source.node_id.hex()[:8]}: {error}")
        raise ObjectLostError(object_id.hex(), "; ".join(errors))

    async def _address_of(self, source: m.ObjectSource) -> str:
        """Return where to fetch from; waits for a Flight server that is starting."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FLIGHT_WAIT_S
        while True:
            known = self._flight_of(source.node_id)
            if known is None:
                raise ConnectionError("the node is dead")
            if known or source.flight:
                return known or source.flight
            if loop.time() > deadline:
                raise TimeoutError("the node serves no objects")
            await asyncio.sleep(_FLIGHT_POLL_S)

    async def _free_at(self, node_id: bytes, request: control.FreePeerObjects) -> None:
        try:
            await self._call_peer(node_id, "FreeObjects", request, FREE_CALL_S)
        except (ConnectionError, TimeoutError) as error:  # its death frees them as well
            _log.info("node %s frees nothing: %s", node_id.hex()[:8], error)

    async def serve_flight(self) -> bool:
        """Serve the objects to other nodes; False if that was begun before."""
        if self._flight_store is not None:
            return False
        from sparkray.store.flight import FlightStore

        tls_files = tls.from_environment(os.environ)
        self._flight_store = FlightStore(
            self.store, self._token, self._options.host, files=tls_files
        )
        self.flight = await self._flight_store.start()
        return True

    async def close(self) -> None:
        if self._flight_store is not None:
            await self._flight_store.close()
        if self._store is not None:
            await self._store.close()
