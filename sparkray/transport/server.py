"""gRPC server: classes with async methods, served by grpcio's generic handlers.

A servicer is any object that looks like `Servicer`.  Its methods take and return
messages; here they are decoded and encoded, errors are mapped, and, before either, the
token is checked: a call without it is ended on its headers, no body of it is read.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from sparkray.exceptions import ProtocolError
from sparkray.protocol import codec
from sparkray.transport import errors
from sparkray.transport.options import SERVER_OPTIONS, credential, full_name
from sparkray.transport.tls import TLSFiles

_log = logging.getLogger(__name__)
_STREAM = socket.SOCK_STREAM

#: Name of a call -> class of what comes, class of what goes.
Calls: TypeAlias = Mapping[str, tuple[type, type]]


class Servicer(Protocol):
    """What `serve` serves.

    Each call is a method in snake case (``ListNodes``: ``list_nodes``, ``KVPut``:
    ``kv_put``): ``async def list_nodes(self, request) -> answer``.  Each stream is an
    async generator function: ``def connect(self, items: AsyncIterator[UpItem]) ->
    AsyncIterator[DownItem]``; it is closed when the peer is gone.
    """

    @property
    def service(self) -> str: ...

    @property
    def calls(self) -> Calls:
        """Name -> class of the request, class of the answer."""

    @property
    def streams(self) -> Calls:
        """Name -> class of the items that come, class of the items that go."""


async def serve(
    servicers: Sequence[Servicer],
    *,
    host: str,
    port: int,
    token: bytes,
    tls: TLSFiles | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Start a server; return it and the port that it got.

    Args:
        servicers: what to serve, each under its own ``service`` name.
        host: the address to listen on.
        port: 0 takes any free port.

    Raises:
        OSError: the port is in use, or the address is not of this host.
    """
    if port:
        _check_free(host, port)
    server = grpc.aio.server(interceptors=[_TokenCheck(token)], options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([_handler(servicer) for servicer in servicers])
    address = full_name(host, port)
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _server_credentials(tls))
    except RuntimeError:
        bound = 0  # grpc says no more than that, and logs the rest
    if not bound:
        text = f"cannot listen on {address}: in use, or not an address of this host"
        raise OSError(errno.EADDRINUSE, text)
    await server.start()
    return server, bound


def _check_free(host: str, port: int) -> None:
    """Find out why a port cannot be had: gRPC only says that, and prints lines of its
    own."""
    try:
        family, _, _, _, name = socket.getaddrinfo(host, port, type=_STREAM)[0]
        with socket.socket(family, _STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(name)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "the port is in use"
        text = f"cannot listen on {full_name(host, port)}: {reason}"
        raise OSError(error.errno, text) from None


def method_name(call: str) -> str:
    """Return the method that serves ``call``: ``KVPut`` -> ``kv_put``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", call).lower()


def _server_credentials(tls: TLSFiles) -> grpc.ServerCredentials:
    ca, cert, key = tls.read()
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)


class _TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends calls that do not show the token, before anything of their body is read."""

    def __init__(self, token: bytes) -> None:
        self._expected = credential(token).encode()
        # A streaming handler, whatever the call: it alone runs before a body is read.
        self._refuse = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        given = [value for key, value in details.invocation_metadata if key == _AUTH]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected):
            return await continuation(details)
        return self._refuse


_AUTH = "authorization"


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "replace")


async def _refuse(_items: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the cluster's token is needed"
    )


def _handler(servicer: Servicer) -> grpc.GenericRpcHandler:
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _unary(getattr(servicer, method_name(name)), request)
        )
        for name, (request, _) in servicer.calls.items()
    }
    handlers |= {
        name: grpc.stream_stream_rpc_method_handler(
            _stream(getattr(servicer, method_name(name)), item)
        )
        for name, (item, _) in servicer.streams.items()
    }
    return grpc.method_handlers_generic_handler(servicer.service, handlers)


def _unary(method: Callable[[Any], Awaitable[Any]], kind: type) -> Callable[..., Any]:
    async def serve_call(body: bytes, context: Any) -> bytes:
        request = await _decode(kind, body, context)
        try:
            return codec.encode(await method(request))
        except Exception as error:
            await _fail(error, context)
            raise

    return serve_call


def _stream(
    method: Callable[[AsyncIterator[Any]], Any], kind: type
) -> Callable[..., Any]:
    async def serve_stream(bodies: AsyncIterator[bytes], context: Any) -> Any:
        async def items() -> AsyncIterator[Any]:
            async for body in bodies:
                yield await _decode(kind, body, context)

        async with contextlib.aclosing(method(items())) as answers:
            try:
                async for answer in answers:
                    yield answer if isinstance(answer, bytes) else codec.encode(answer)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _fail(error, context)

    return serve_stream


async def _decode(kind: type, body: bytes, context: Any) -> Any:
    try:
        return codec.decode_as(kind, body)
    except ProtocolError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, errors.text_of(error))


async def _fail(error: Exception, context: Any) -> None:
    """End the call with ``error``; one that we did not foresee is logged."""
    if errors.kind_of(error) is None:
        _log.error("call failed", exc_info=error)
    await context.abort(
        grpc.StatusCode[errors.status_of(error)],
        errors.text_of(error),
        ((errors.TRAILER, errors.to_trailer(error)),),
    )
