"""gRPC clients: `Peer` for head and agents, `call_head` for the command line.

Every call has a deadline and goes through one function, which maps what can go wrong to
the errors of this package.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

import grpc
import grpc.aio

from sparkray.protocol import codec, control
from sparkray.transport import errors
from sparkray.transport.options import CLIENT_OPTIONS, credential
from sparkray.transport.tls import TLSFiles

_log = logging.getLogger(__name__)
_AnswerT = TypeVar("_AnswerT")


class Peer:
    """The gRPC server of another head or agent.  Connects on first use, reconnects.

    Args:
        address: ``host:port``.
        token: the cluster's secret.
        tls: as for the server; None for a cluster without TLS.
    """

    def __init__(self, address: str, token: bytes, tls: TLSFiles | None = None) -> None:
        self.address = address
        self._metadata = (("authorization", credential(token)),)
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None

    async def call(
        self,
        service: str,
        method: str,
        request: Any,
        answer_type: type[_AnswerT],
        timeout_s: float,
    ) -> _AnswerT:
        """Call ``/service/method`` and return its answer.

        Raises:
            ConnectionError: nobody answers at that address, or this was closed; names
                it.
            TimeoutError: no answer within ``timeout_s``.
            ProtocolError: the token or the message was refused.
            Exception: what the method raised, see `transport.errors`.
        """
        channel = self._open()
        call = channel.unary_unary(f"/{service}/{method}")
        try:
            body = await call(
                codec.encode(request), timeout=timeout_s, metadata=self._metadata
            )
        except asyncio.CancelledError:  # gRPC's word for a channel that is closed, too
            if channel is self._channel or _is_cancelled():
                raise
            raise ConnectionError(
                f"the connection to {self.address} was closed during a call"
            ) from None
        except grpc.RpcError as error:
            raise _mapped(error, self.address) from None
        return codec.decode_as(answer_type, body)

    async def stream(
        self,
        service: str,
        method: str,
        items: AsyncIterator[Any],
        answer_type: type[_AnswerT],
    ) -> AsyncGenerator[_AnswerT, None]:
        """Send ``items`` and yield what comes back, until the other side ends it.

        The one call without a deadline: the caller watches it by its own heartbeat.

        Raises:
            Exception: as `call`.
        """
        call = self._open().stream_stream(f"/{service}/{method}")(
            metadata=self._metadata
        )
        writer = asyncio.ensure_future(_write_all(call, items))
        try:
            async for body in call:
                yield codec.decode_as(answer_type, body)
        except grpc.RpcError as error:
            raise _mapped(error, self.address) from None
        finally:
            writer.cancel()  # or it would take items that belong to the next stream
            call.cancel()

    async def close(self) -> None:
        """Close the connection; calls in flight fail.  Repeatable."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            if self._tls is None:
                self._channel = grpc.aio.insecure_channel(self.address, CLIENT_OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(
                    self.address, _credentials(self._tls), CLIENT_OPTIONS
                )
        return self._channel


def _is_cancelled() -> bool:
    """Tell if it is the present task that is to end.  Python 3.10 cannot tell."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return bool(cancelling is not None and cancelling())


def call_head(
    address: str,
    token: bytes,
    method: str,
    request: Any,
    timeout_s: float = 30.0,
    tls: TLSFiles | None = None,
) -> Any:
    """Call the head and wait for its answer (no loop needed; for the command line).

    Args:
        method: a name in `control.HEAD_CALLS`.

    Raises:
        Exception: as `Peer.call`; ConnectionError names the address.
    """
    _, answer_type = control.HEAD_CALLS[method]
    if tls is None:
        channel = grpc.insecure_channel(address, CLIENT_OPTIONS)
    else:
        channel = grpc.secure_channel(address, _credentials(tls), CLIENT_OPTIONS)
    with channel:
        call = channel.unary_unary(f"/Head/{method}")
        metadata = (("authorization", credential(token)),)
        try:
            body = call(codec.encode(request), timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise _mapped(error, address) from None
    return codec.decode_as(answer_type, body)


async def _write_all(call: Any, items: AsyncIterator[Any]) -> None:
    try:
        async for item in items:
            await call.write(codec.encode(item))
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass  # the stream has ended; its reader is told why
    except Exception:
        _log.exception("the items of a stream could not be made")
        call.cancel()


def _credentials(tls: TLSFiles) -> grpc.ChannelCredentials:
    ca, cert, key = tls.read()
    return grpc.ssl_channel_credentials(ca, key, cert)


def _mapped(error: Any, address: str) -> Exception:
    trailer: bytes | None = None
    for key, value in error.trailing_metadata() or ():
        if key == errors.TRAILER:
            trailer = value
    return errors.from_status(
        error.code().name, error.details() or "", trailer, address
    )
