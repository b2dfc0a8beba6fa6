"""The agent's Unix socket: proof of the token, frames, messages.

Knows nothing of what the messages mean; `Members` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
from typing import Any, Protocol

from sparkray.exceptions import ProtocolError
from sparkray.protocol.codec import decode_channel, encode
from sparkray.protocol.framing import FrameDecoder, frame
from sparkray.protocol.messages import Attach, CallFailed
from sparkray.transport.auth import HANDSHAKE_TIMEOUT_S, MAX_UNPROVEN, Handshake
from sparkray.transport.errors import to_wire

_log = logging.getLogger(__name__)

#: No message to an agent is longer; as on the agents' gRPC.
MAX_BODY_BYTES = 64 * 1024 * 1024


class Members(Protocol):
    """Who the messages are for."""

    def attach(self, channel: AgentChannel, message: Attach) -> None:
        """The first message of a runtime arrived."""

    def receive(self, channel: AgentChannel, message: Any) -> None:
        """A later message arrived."""

    def lost(self, channel: AgentChannel) -> None:
        """A runtime that had sent its first message is gone."""


class _Step(enum.Enum):
    UNPROVEN = "unproven"
    """The peer has not proven that it knows the token."""
    PROVEN = "proven"
    """It has; its first message is to come."""
    ATTACHED = "attached"
    """Its first message came."""
    CLOSED = "closed"
    """No more bytes, either way."""


class AgentChannel(asyncio.Protocol):
    """One runtime's connection."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._step = _Step.UNPROVEN
        self._handshake = Handshake(server.token, server=True)
        self._decoder = FrameDecoder(MAX_BODY_BYTES)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # --- asyncio calls these ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._server.unproven) >= MAX_UNPROVEN:
            transport.abort()
            return
        self._server.unproven.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_TIMEOUT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        try:
            if self._step is _Step.UNPROVEN:
                data = self._prove(data)
            if data:
                for body in self._decoder.feed(data):
                    self._take(body)
        except ProtocolError as error:
            _log.warning("closing a channel: %s", error)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        attached = self._step is _Step.ATTACHED
        self._step = _Step.CLOSED
        self._server.unproven.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if attached:
            self._server.members.lost(self)

    # --- the agent calls these --------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send, or drop if the runtime is gone."""
        if self._transport is not None and self._step is not _Step.CLOSED:
            self._transport.write(frame(encode(message)))

    def fail(self, call: int, error: BaseException) -> None:
        self.send(CallFailed(call, to_wire(error)))

    @property
    def backlog_bytes(self) -> int:
        """How much was sent that the runtime has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_open(self) -> bool:
        return self._step is not _Step.CLOSED

    def close(self) -> None:
        """Close once what was sent is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _prove(self, data: bytes) -> bytes:
        reply, rest = self._handshake.feed(data)
        if reply and self._transport is not None:
            self._transport.write(reply)
        if self._handshake.done:
            self._step = _Step.PROVEN
        return rest

    def _take(self, body: bytes) -> None:
        message = decode_channel(body)
        if self._step is _Step.ATTACHED:
            self._server.members.receive(self, message)
        elif self._step is _Step.PROVEN and isinstance(message, Attach):
            self._step = _Step.ATTACHED
            self._server.unproven.discard(self)
            if self._deadline is not None:
                self._deadline.cancel()
            self._server.members.attach(self, message)
        elif self._step is not _Step.CLOSED:
            raise ProtocolError(f"{type(message).__name__} before Attach")


class ChannelServer:
    """Listens on the agent's socket."""

    def __init__(self, path: str, token: bytes, members: Members) -> None:
        self.path, self.token, self.members = path, token, members
        self.unproven: set[AgentChannel] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(
                lambda: AgentChannel(self), self.path, backlog=1024
            )
        finally:
            os.umask(before)

    def close(self) -> None:
        """Stop listening and drop whoever has not attached.  Repeatable."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for channel in list(self.unproven):
            channel.abort()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
