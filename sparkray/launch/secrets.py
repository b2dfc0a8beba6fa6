"""What a process of the cluster proves itself with, as the environment gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkray.transport import tls

if TYPE_CHECKING:
    import ssl


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts of a server and of a client; None for a cluster without TLS.

    Raises:
        ValueError: some of the three variables are set and others are not.
        OSError: a file cannot be read.
    """
    files = tls.from_environment()
    return None if files is None else (files.server_context(), files.client_context())
