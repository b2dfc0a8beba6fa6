"""Objects between nodes, by Arrow Flight.  Loads Arrow only when first used.

A node serves each object of its store under its id as ticket: record batches of one
``uint8`` column ``data`` that are the bytes of the segment, in order; the schema's
metadata has ``size``.  So any Arrow client with the token can read an object.  The
token travels as ``authorization: Bearer <token>`` and is checked before anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sparkray.store import segment
from sparkray.transport import tls

if TYPE_CHECKING:
    from sparkray.store.local import NodeStore

#: The server's name among the clients of the store.
_CLIENT: Final = "(flight)"
#: How long a reader may wait for an object that is being written or restored.
_PIN_TIMEOUT_S: Final = 60.0


class FlightStore:
    """Serves the objects of a store to other nodes.

    Args:
        store: whose objects; used on its own loop only.
        token: what clients must show.
        host: address to listen on.
        port: 0 takes any free one.
        files: certificates; default: those that the environment names, if any.
    """

    def __init__(
        self,
        store: NodeStore,
        token: bytes,
        host: str,
        port: int = 0,
        files: tls.TLSFiles | None = None,
    ) -> None:
        self._store, self._token = store, token
        self._host, self._port = host, port
        self._files = tls.from_environment() if files is None else files
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None

    async def start(self) -> str:
        """Begin to serve; return ``host:port``.  Takes a while: it loads Arrow."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._start)
        return f"{self._host}:{self._server.port}"

    def _start(self) -> None:
        from sparkray.store import arrow_flight

        self._server = arrow_flight.serve(
            self._open, self._token, self._host, self._port, self._files
        )

    async def close(self) -> None:
        """Stop serving; calls under way are ended.  Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)

    def _open(self, object_id: bytes) -> memoryview:
        """Return a view of an object that keeps it pinned.  Called in Flight's threads.

        Raises:
            ObjectLostError: it is not here.
        """
        loop = self._loop
        assert loop is not None
        pinning = self._store.pin(_CLIENT, object_id, timeout_s=_PIN_TIMEOUT_S)
        path, size = asyncio.run_coroutine_threadsafe(pinning, loop).result()

        def release() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._store.unpin, _CLIENT, [object_id])

        try:
            return segment.map_for_reading(path, size, release)
        except OSError:
            release()
            raise


def fetch(
    address: str,
    token: bytes,
    object_id: bytes,
    into: Callable[[int], memoryview],
    timeout_s: float = 600.0,
    files: tls.TLSFiles | None = None,
) -> int:
    """Read an object from another node's server.  Blocks.

    Args:
        address: ``host:port`` of the server.
        into: is given the size in bytes, returns where to write that many.
        files: certificates; default: those that the environment names.

    Returns:
        the size.

    Raises:
        ObjectLostError: the node does not have it, cannot be reached, or was too slow.
        ProtocolError: it does not accept the token, or sent something else.
    """
    from sparkray.store import arrow_flight

    files = tls.from_environment() if files is None else files
    return arrow_flight.fetch(address, token, object_id, into, timeout_s, files)
