"""TLS files for tests, made by ``openssl``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sparkray.transport.tls import TLSFiles


def certificates(directory: Path, name: str) -> TLSFiles:
    """Make an authority, and a certificate for 127.0.0.1."""
    files = TLSFiles(
        *(str(directory / f"{name}-{p}.pem") for p in ("ca", "cert", "key"))
    )
    ca_key = str(directory / f"{name}-ca-key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    _run(*make, "-subj", f"/CN={name} CA", "-keyout", ca_key, "-out", files.ca)
    _run(
        *make, "-subj", "/CN=node", "-keyout", files.key, "-out", files.cert,
        "-CA", files.ca, "-CAkey", ca_key, "-addext", "subjectAltName=IP:127.0.0.1",
        "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip
    return files


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
