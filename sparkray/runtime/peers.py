"""Task channels to other runtimes: one a process, opened when first needed.

A channel carries messages of both directions, whoever opened it.  Its end is the event
of the other process's death.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from sparkray.exceptions import ProtocolError
from sparkray.protocol.codec import decode_channel, encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import Address, Hello
from sparkray.transport.channel import (
    Channel,
    IOLoop,
    Listener,
    connect_tcp,
    connect_unix,
)

log = logging.getLogger(__name__)

#: For each class of message: what takes a run of them from one channel.
Handlers = dict[type, Callable[[Channel, list[Any]], None]]


class Peer:
    """Who is at the other end of a channel, and what went over it already."""

    __slots__ = (
        "address",
        "functions",
        "gpu_ids",
        "known_templates",
        "leased",
        "running",
        "templates",
    )

    def __init__(self, address: Address | None = None) -> None:
        self.address = address
        self.known_templates: set[int] = set()  #: sent to the peer
        self.functions: set[bytes] = set()  #: hashes sent to the peer
        self.leased: Any = None  #: the `LeasedWorker` that the peer is to us
        self.templates: dict[int, Any] = {}  #: received from the peer
        self.running: Any = None  #: for the executor
        self.gpu_ids: list[str] | None = None  #: for it, of the peer's lease of us


class Peers:
    """All task channels of one runtime."""

    def __init__(
        self,
        loop: IOLoop,
        token: bytes,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None,
        on_lost: Callable[[Channel, str], None],
    ) -> None:
        self.handlers: Handlers = {}
        self._loop, self._token, self._on_lost = loop, token, on_lost
        self._tls_server = tls[0] if tls is not None else None
        self._tls_client = tls[1] if tls is not None else None
        self._cluster_id = b""
        self._own: Address | None = None
        self._leaving = False  #: no new connections
        self._listeners: list[Listener] = []
        self._accepted: set[Channel] = set()  #: also those that have proven nothing yet
        #: Guards `_by_worker`; taken inside the runtime's lock, never around it.
        self._lock = threading.Lock()
        self._by_worker: dict[bytes, Channel] = {}

    def listen(self, sock: socket.socket) -> None:
        """Accept task channels on a listening socket."""
        tls = None if sock.family == socket.AF_UNIX else self._tls_server

        def accept(connection: socket.socket) -> Channel:
            if sock.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = self._channel(connection, Peer(), server=True, tls=tls)
            self._accepted.add(channel)
            return channel

        listener = Listener(self._loop, sock, accept)
        self._listeners.append(listener)
        self._loop.post(listener.start)

    def introduce(self, cluster_id: bytes, own: Address) -> None:
        """Say who we are: needed before the first `connect`."""
        self._cluster_id, self._own = cluster_id, own

    def connect(self, address: Address) -> Channel:
        """Return the channel to a runtime, opened if need be.  Any thread.

        A runtime that is gone shows as an `OSError` here or as the end of the channel.
        """
        with self._lock:
            channel = self._by_worker.get(address.worker_id)
            if channel is not None and not channel.is_closed:
                return channel
            if self._leaving:
                raise ConnectionError("this process leaves the cluster")
            channel = self._open(address)
            self._by_worker[address.worker_id] = channel
        self._loop.post(channel.start)
        return channel

    def send(self, address: Address, message: Any) -> None:
        """Send a message to a runtime; one that is gone does not need it."""
        try:
            self.connect(address).send(frame(encode(message)))
        except OSError as error:
            log.debug("%s not sent: %s", type(message).__name__, error)

    def leave(self) -> None:
        """Open no more connections: what `close` ends must not begin again."""
        self._leaving = True

    def close(self) -> None:
        """Stop listening and end all channels.  I/O thread only."""
        for listener in self._listeners:
            listener.close()
        with self._lock:
            channels = {*self._by_worker.values(), *self._accepted}
        for channel in channels:
            channel.close("this process leaves the cluster")

    def close_node(self, node_id: bytes, reason: str) -> None:
        """End the channels to a dead node.  I/O thread only."""
        with self._lock:
            channels = list(self._by_worker.values())
        for channel in channels:
            address = channel.peer.address
            if address is not None and address.node_id == node_id:
                channel.close(f"node {node_id.hex()} died: {reason}")

    def _open(self, address: Address) -> Channel:
        assert self._own is not None
        near = address.node_id == self._own.node_id
        if near:
            sock, tls = connect_unix(address.path), None
        else:
            sock = connect_tcp(address.host, address.port)
            tls = self._tls_client
        channel = self._channel(
            sock, Peer(address), server=False, tls=tls, host=address.host
        )
        channel.send(frame(encode(Hello(self._cluster_id, self._own))))
        return channel

    def _channel(
        self,
        sock: socket.socket,
        peer: Peer,
        *,
        server: bool,
        tls: ssl.SSLContext | None,
        host: str = "",
    ) -> Channel:
        channel = Channel(
            self._loop,
            sock,
            self._token,
            server=server,
            on_open=lambda channel: None,
            on_frames=self._receive,
            on_close=self._closed,
            tls=tls,
            tls_host=host,
        )
        channel.peer = peer
        return channel

    def _receive(self, channel: Channel, frames: list[bytes]) -> None:
        run: list[Any] = []
        kind: type | None = None
        for body in frames:
            message = decode_channel(body)
            if message.__class__ is not kind:
                if kind is not None:
                    self._handle(channel, kind, run)
                run, kind = [], message.__class__
            run.append(message)
        if kind is not None:
            self._handle(channel, kind, run)

    def _handle(self, channel: Channel, kind: type, run: list[Any]) -> None:
        if channel.peer.address is None:
            self._meet(channel, run.pop(0))
        handler = self.handlers.get(kind)
        if handler is not None:
            if run:
                handler(channel, run)
        elif run:
            raise ProtocolError(f"unexpected {kind.__name__} on a task channel")

    def _meet(self, channel: Channel, hello: Any) -> None:
        if not isinstance(hello, Hello) or hello.cluster_id != self._cluster_id:
            raise ProtocolError("the peer belongs to another cluster")
        channel.peer.address = hello.address
        with self._lock:
            self._by_worker.setdefault(hello.address.worker_id, channel)

    def _closed(self, channel: Channel, reason: str) -> None:
        self._accepted.discard(channel)
        address = channel.peer.address
        if address is not None:
            with self._lock:
                if self._by_worker.get(address.worker_id) is channel:
                    del self._by_worker[address.worker_id]
        self._on_lost(channel, reason)


def remove_socket(path: str) -> None:
    """Remove our Unix socket's file; one that is gone is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
