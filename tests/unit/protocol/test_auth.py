"""The proof of the token, without a socket: both sides in one process."""

import hashlib
import hmac

import pytest

from sparkray.exceptions import ProtocolError
from sparkray.transport.auth import MAGIC, NONCE_BYTES, PROOF_BYTES, Handshake

TOKEN, OTHER = b"t" * 64, b"u" * 64
HELLO_BYTES = len(MAGIC) + NONCE_BYTES


def _converse(client: Handshake, server: Handshake, step: int = 1 << 20) -> None:
    """Carry bytes to and fro in pieces of ``step`` until nobody has more to say."""
    to_server, to_client = client.first_bytes(), server.first_bytes()
    while to_server or to_client:
        sent, to_server = to_server, b""
        for at in range(0, len(sent), step):
            to_client += _feed(server, sent[at : at + step])
        sent, to_client = to_client, b""
        for at in range(0, len(sent), step):
            to_server += _feed(client, sent[at : at + step])


def _feed(side: Handshake, data: bytes) -> bytes:
    reply, rest = side.feed(data)
    assert rest == b""
    return reply


@pytest.mark.parametrize("step", [1, 2, 3, 31, 32, 33, 40, 64, 1000])
def test_two_sides_with_the_token_prove_it_however_the_bytes_are_cut(step: int) -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    _converse(client, server, step)
    assert client.done
    assert server.done


def test_a_client_refuses_a_server_without_the_token_and_proves_nothing_to_it() -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(OTHER, server=True)
    challenge = _feed(server, client.first_bytes())
    with pytest.raises(ProtocolError, match="token"):
        client.feed(challenge)
    assert not client.done
    assert not server.done


def test_a_server_refuses_a_client_without_the_token() -> None:
    server = Handshake(TOKEN, server=True)
    nonce = b"n" * NONCE_BYTES
    challenge = _feed(server, MAGIC + nonce)
    forged = _proof(OTHER, b"client", challenge[:NONCE_BYTES], nonce)
    with pytest.raises(ProtocolError, match="token"):
        server.feed(forged)
    assert not server.done


@pytest.mark.parametrize("at", range(PROOF_BYTES))
def test_one_wrong_bit_in_any_byte_of_the_proof_is_refused(at: int) -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    proof = bytearray(_feed(client, _feed(server, client.first_bytes())))
    proof[at] ^= 1
    with pytest.raises(ProtocolError):
        server.feed(bytes(proof))


def test_a_proof_reflected_to_its_maker_is_worth_nothing() -> None:
    """A peer without the token sends a server's own challenge back as its proof."""
    server = Handshake(TOKEN, server=True)
    challenge = _feed(server, MAGIC + b"n" * NONCE_BYTES)
    with pytest.raises(ProtocolError):
        server.feed(challenge[NONCE_BYTES:])


def test_a_second_connection_cannot_be_used_to_answer_the_first() -> None:
    """The attacker opens a second connection with the first one's nonce, and passes on
    what it is told: the role in the proof differs."""
    first, second = Handshake(TOKEN, server=True), Handshake(TOKEN, server=True)
    nonce = _feed(first, MAGIC + b"n" * NONCE_BYTES)[:NONCE_BYTES]
    borrowed = _feed(second, MAGIC + nonce)[NONCE_BYTES:]
    with pytest.raises(ProtocolError):
        first.feed(borrowed)


def test_a_client_does_not_take_its_own_proof_for_a_servers() -> None:
    client = Handshake(TOKEN, server=False)
    nonce = client.first_bytes()[len(MAGIC) :]
    with pytest.raises(ProtocolError):
        client.feed(nonce + _proof(TOKEN, b"client", nonce, nonce))


def test_a_recorded_exchange_cannot_be_played_again() -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    hello = client.first_bytes()
    proof = _feed(client, _feed(server, hello))
    _feed(server, proof)
    again = Handshake(TOKEN, server=True)
    _feed(again, hello)
    with pytest.raises(ProtocolError):
        again.feed(proof)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 40]
)
def test_another_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak"):
        Handshake(TOKEN, server=True).feed(data)


def test_nothing_is_answered_before_a_whole_hello() -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    hello = client.first_bytes()
    assert server.first_bytes() == b""
    assert [_feed(server, hello[i : i + 1]) for i in range(HELLO_BYTES - 1)] == [
        b""
    ] * (HELLO_BYTES - 1)
    assert len(_feed(server, hello[-1:])) == NONCE_BYTES + PROOF_BYTES


def test_what_follows_the_proof_is_handed_on_untouched() -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    proof = _feed(client, _feed(server, client.first_bytes()))
    reply, rest = server.feed(proof + b"first frame")
    assert (reply, rest) == (b"", b"first frame")


def test_every_exchange_uses_fresh_nonces() -> None:
    hellos = {Handshake(TOKEN, server=False).first_bytes() for _ in range(8)}
    assert len(hellos) == 8


def test_the_token_itself_never_travels() -> None:
    client, server = Handshake(TOKEN, server=False), Handshake(TOKEN, server=True)
    hello = client.first_bytes()
    challenge = _feed(server, hello)
    proof = _feed(client, challenge)
    assert TOKEN[:8] not in hello + challenge + proof


def _proof(token: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(token, role + first + second, hashlib.sha256).digest()
