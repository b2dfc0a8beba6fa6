"""TLS for all of a cluster's connections, from three files.

``SPARKRAY_TLS_CA``, ``SPARKRAY_TLS_CERT`` and ``SPARKRAY_TLS_KEY`` name PEM files: the
authority that both sides trust, and this process's own certificate and key, which it
shows as a server and as a client.  A certificate must name the addresses by which the
host is reached.  TLS adds to the proof of the token, it does not replace it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ssl

_VARIABLES = ("SPARKRAY_TLS_CA", "SPARKRAY_TLS_CERT", "SPARKRAY_TLS_KEY")


class TLSFiles(msgspec.Struct, frozen=True):
    """Paths of three PEM files."""

    ca: str
    cert: str
    key: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents of CA, certificate and key.

        Raises:
            OSError: one of them cannot be read.
        """
        ca, cert, key = (
            Path(path).read_bytes() for path in (self.ca, self.cert, self.key)
        )
        return ca, cert, key

    def server_context(self) -> ssl.SSLContext:
        """For task channels over TCP, the listening side: wants a certificate too."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def client_context(self) -> ssl.SSLContext:
        """For task channels over TCP, the connecting side: pass ``server_hostname``."""
        import ssl

        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        import ssl

        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context


def from_environment(environment: Mapping[str, str] | None = None) -> TLSFiles | None:
    """Return the files that the variables name, None when none is set.

    Raises:
        ValueError: some variables are set and others are not; names them.
    """
    environment = os.environ if environment is None else environment
    paths = [environment.get(name, "") for name in _VARIABLES]
    if not any(paths):
        return None
    missing = [name for name, path in zip(_VARIABLES, paths, strict=True) if not path]
    if missing:
        raise ValueError(f"TLS needs three files; not set: {', '.join(missing)}")
    return TLSFiles(*paths)


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts of a server and of a client; None for a cluster without TLS.

    Raises:
        ValueError: some of the three variables are set and others are not.
        OSError: a file cannot be read.
    """
    files = from_environment()
    return None if files is None else (files.server_context(), files.client_context())
