"""Serves a head, in a process of its own or in that of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkray.head.service import HeadService
from sparkray.head.servicer import HeadServicer
from sparkray.transport import server
from sparkray.transport.server import Servicer
from sparkray.transport.tls import TLSFiles


async def serve_head(
    head: HeadService,
    beside: Sequence[Servicer] = (),
    *,
    host: str,
    port: int,
    token: bytes,
    tls: TLSFiles | None,
) -> tuple[Any, int]:
    """Start a gRPC server with a head; the head begins its work.

    Args:
        beside: what the server serves as well.

    Returns:
        The server, and the port that it got.

    Raises:
        OSError: the port is in use, or the address is not of this host.
    """
    serving, port = await server.serve(
        [*beside, HeadServicer(head)], host=host, port=port, token=token, tls=tls
    )
    head.start(f"{host}:{port}")
    return serving, port
