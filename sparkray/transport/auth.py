"""Proof of the cluster's token, in both directions, before anything else is read.

The token itself never travels over a task channel:

    client                                   server
      |  magic(8) | client nonce(32)   --->  |
      |  <---  server nonce(32) | HMAC(token, "server" + client nonce + server nonce)
      |  HMAC(token, "client" + server nonce + client nonce)  --->  |

A server answers a client that does not know the token with a proof that is of no use
elsewhere (both nonces and the role are in it).  Every message has a fixed length, so an
unproven peer can make the other side hold at most 40 bytes.  No I/O here: bytes in,
bytes out.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sparkray.exceptions import ProtocolError

MAGIC: Final = b"SPKRAY\x00\x01"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
#: How long a peer may take over the whole exchange.
HANDSHAKE_TIMEOUT_S: Final = 10.0
#: How many unproven connections a server keeps; more are closed at once.
MAX_UNPROVEN: Final = 256

TOKEN_BYTES: Final = 32

_HELLO_BYTES = len(MAGIC) + NONCE_BYTES
_CHALLENGE_BYTES = NONCE_BYTES + PROOF_BYTES


class _Step(enum.Enum):
    AWAIT_HELLO = _HELLO_BYTES
    """Server: the client's magic and nonce are to come."""
    AWAIT_CHALLENGE = _CHALLENGE_BYTES
    """Client: the server's nonce and proof are to come."""
    AWAIT_PROOF = PROOF_BYTES + 0
    """Server: the client's proof is to come."""
    PROVEN = 0
    """Both sides have proven that they know the token."""


class Handshake:
    """One side of the exchange.

    Args:
        token: the cluster's secret.
        server: True on the side that accepted the connection.
    """

    def __init__(self, token: bytes, *, server: bool) -> None:
        self._token = token
        self._buffer = bytearray()
        self._nonce = os.urandom(NONCE_BYTES)
        self._peer_nonce = b""
        self._step = _Step.AWAIT_HELLO if server else _Step.AWAIT_CHALLENGE
        self._first = b"" if server else MAGIC + self._nonce

    @property
    def done(self) -> bool:
        return self._step is _Step.PROVEN

    @property
    def partial_bytes(self) -> int:
        """How much of an unfinished message is held."""
        return len(self._buffer)

    def first_bytes(self) -> bytes:
        """What to send before anything was received (nothing on the server side)."""
        return self._first

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take received bytes.

        Returns:
            what to send now, and what was received beyond the end of the exchange
            (always empty until `done`).

        Raises:
            ProtocolError: the peer does not speak this protocol or does not know the
                token.  Close the connection without another word.
        """
        self._buffer += data
        reply = b""
        while not self.done and len(self._buffer) >= self._step.value:
            size = self._step.value
            part = bytes(self._buffer[:size])
            del self._buffer[:size]
            reply += self._take(part)
        if not self.done:
            return reply, b""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return reply, rest

    def _take(self, part: bytes) -> bytes:
        if self._step is _Step.AWAIT_HELLO:
            if part[: len(MAGIC)] != MAGIC:
                raise ProtocolError("the peer does not speak sparkray's protocol")
            self._peer_nonce = part[len(MAGIC) :]
            self._step = _Step.AWAIT_PROOF
            return self._nonce + self._proof(b"server", self._peer_nonce, self._nonce)
        if self._step is _Step.AWAIT_CHALLENGE:
            nonce, proof = part[:NONCE_BYTES], part[NONCE_BYTES:]
            self._check(proof, self._proof(b"server", self._nonce, nonce))
            self._step = _Step.PROVEN
            return self._proof(b"client", nonce, self._nonce)
        self._check(part, self._proof(b"client", self._nonce, self._peer_nonce))
        self._step = _Step.PROVEN
        return b""

    def _proof(self, role: bytes, first: bytes, second: bytes) -> bytes:
        return hmac.new(self._token, role + first + second, hashlib.sha256).digest()

    def _check(self, given: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(given, expected):
            raise ProtocolError("the peer does not know this cluster's token")


def new_token() -> bytes:
    return os.urandom(TOKEN_BYTES)


def parse_token(text: str) -> bytes:
    """Return the token that ``text`` stands for: hexadecimal, or any words of a user.

    Token files that sparkray writes always hold hexadecimal.

    Raises:
        ValueError: there is nothing in it.
    """
    text = text.strip()
    if not text:
        raise ValueError("the cluster's token is empty")
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text.encode()


def read_token(path: str | Path) -> bytes:
    """Return the token in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty.
    """
    return parse_token(Path(path).read_text())


def token_from_environment(environment: Mapping[str, str]) -> bytes | None:
    """Return what ``SPARKRAY_TOKEN`` or ``SPARKRAY_TOKEN_FILE`` give, or None.

    Raises:
        ValueError: the file cannot be read, or holds no token; names it.
    """
    if text := environment.get("SPARKRAY_TOKEN"):
        return parse_token(text)
    if path := environment.get("SPARKRAY_TOKEN_FILE"):
        try:
            return read_token(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            text = f"SPARKRAY_TOKEN_FILE={path}: no token can be read there ({reason})"
            raise ValueError(text) from error
    return None
