"""Calls and streams between real gRPC servers and clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sparkray import exceptions
from sparkray.exceptions import ClusterError, ProtocolError, UnschedulableError
from sparkray.protocol import control
from sparkray.transport import client, server
from sparkray.transport.client import Peer
from sparkray.transport.tls import TLSFiles
from tests.certificates import certificates

TOKEN = b"\x07" * 32


class Echo:
    """A service that answers, raises or waits as its request says."""

    service = "Echo"
    calls: ClassVar[server.Calls] = {"KVPut": (control.KVPut, control.KVReply)}
    streams: ClassVar[server.Calls] = {"Connect": (control.UpItem, control.DownItem)}

    def __init__(self) -> None:
        self.stream_ended = asyncio.Event()

    async def kv_put(self, request: control.KVPut) -> control.KVReply:
        if request.namespace == "wait":
            await asyncio.sleep(60)
        if request.namespace == "bug":
            raise RuntimeError(request.value.decode())
        if request.namespace == "raise":
            raise UnschedulableError("{CPU: 64}", "{CPU: 4}")
        return control.KVReply(request.value)

    async def connect(
        self, items: AsyncIterator[control.UpItem]
    ) -> AsyncIterator[control.DownItem]:
        try:
            async for item in items:
                if item.report is not None:
                    raise UnschedulableError("{CPU: 64}", "{CPU: 4}")
                yield control.DownItem(logs=item.logs)
        finally:
            self.stream_ended.set()


def served(test: Callable[[Echo, Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        echo = Echo()
        serving, port = await server.serve(
            [echo], host="127.0.0.1", port=0, token=TOKEN
        )
        peer = Peer(f"127.0.0.1:{port}", TOKEN)
        try:
            await asyncio.wait_for(test(echo, peer), 30)
        finally:
            await peer.close()
            await serving.stop(0)

    asyncio.run(main())


async def put(peer: Peer, how: str, value: bytes = b"v", timeout_s: float = 10) -> Any:
    request = control.KVPut(how, b"", value, True)
    return await peer.call("Echo", "KVPut", request, control.KVReply, timeout_s)


def logs(text: str) -> control.LogBatch:
    return control.LogBatch(b"j", "f", 1, "host", [text], False)


def test_a_call_brings_back_the_answer() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        assert await put(peer, "") == control.KVReply(b"v")
        large = b"x" * (8 << 20)
        assert (await put(peer, "", large)).value == large

    served(test)


def test_an_error_arrives_as_itself_and_a_bug_without_its_text() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        with pytest.raises(UnschedulableError) as caught:
            await put(peer, "raise")
        assert caught.value.request == "{CPU: 64}"
        with pytest.raises(ClusterError) as bug:
            await put(peer, "bug", b"secret")
        assert "secret" not in str(bug.value)

    served(test)


def test_a_call_ends_at_its_deadline() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=peer.address):
            await put(peer, "wait", timeout_s=0.2)
        assert time.monotonic() - start < 2

    served(test)


def test_items_of_a_stream_come_back_in_order_until_it_ends() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        async def items() -> AsyncIterator[control.UpItem]:
            for number in range(100):
                yield control.UpItem(logs=logs(str(number)))

        stream = peer.stream("Echo", "Connect", items(), control.DownItem)
        lines = [item.logs.lines[0] async for item in stream if item.logs]
        assert lines == [str(number) for number in range(100)]

    served(test)


def test_an_error_ends_a_stream_and_arrives_as_itself() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        async def items() -> AsyncIterator[control.UpItem]:
            yield control.UpItem(report=control.NodeReport(b"", {}, [], 0))
            await asyncio.Event().wait()

        with pytest.raises(UnschedulableError):
            async for _ in peer.stream("Echo", "Connect", items(), control.DownItem):
                pass
        await echo.stream_ended.wait()

    served(test)


@pytest.mark.parametrize("how", ["leave", "close", "cancel"])
def test_a_server_notices_when_the_reader_of_a_stream_goes(how: str) -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        async def items() -> AsyncIterator[control.UpItem]:
            yield control.UpItem(logs=logs("first"))
            await asyncio.Event().wait()

        arrived = asyncio.Event()

        async def read() -> None:
            stream = peer.stream("Echo", "Connect", items(), control.DownItem)
            async for _ in stream:
                arrived.set()
                if how == "leave":
                    await stream.aclose()
                    return

        reader = asyncio.ensure_future(read())
        await arrived.wait()
        if how == "close":
            await peer.close()
        elif how == "cancel":
            reader.cancel()
        await asyncio.wait_for(echo.stream_ended.wait(), 5)
        await asyncio.gather(reader, return_exceptions=True)

    served(test)


def test_a_port_in_use_is_refused_and_named() -> None:
    async def test(echo: Echo, peer: Peer) -> None:
        port = int(peer.address.rpartition(":")[2])
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: the port is in use"):
            await server.serve([echo], host="127.0.0.1", port=port, token=TOKEN)

    served(test)


def test_a_dead_address_is_named_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1:"):
        client.call_head("127.0.0.1:1", TOKEN, "ListNodes", control.ListNodes())

    async def main() -> None:
        peer = Peer("127.0.0.1:1", TOKEN)
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1:"):
            await put(peer, "")
        await peer.close()

    asyncio.run(main())
    assert time.monotonic() - start < 5


def test_a_peer_finds_its_server_again_when_it_comes_back() -> None:
    async def main() -> None:
        serving, port = await server.serve(
            [Echo()], host="127.0.0.1", port=0, token=TOKEN
        )
        peer = Peer(f"127.0.0.1:{port}", TOKEN)
        await put(peer, "")
        await serving.stop(0)
        with pytest.raises(ConnectionError):
            await put(peer, "")
        serving, _ = await server.serve(
            [Echo()], host="127.0.0.1", port=port, token=TOKEN
        )
        deadline = time.monotonic() + 5
        while True:
            try:
                await put(peer, "")
                break
            except ConnectionError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        await peer.close()
        await serving.stop(0)

    asyncio.run(main())


def test_a_wrong_token_is_said_to_be_one(head: Any) -> None:
    with pytest.raises(ProtocolError, match=f"{head.address} refused the token"):
        client.call_head(head.address, b"wrong", "ListNodes", control.ListNodes())


def test_tls_wants_a_certificate_of_the_same_authority(
    start_head: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    ours, theirs = certificates(tmp_path, "ours"), certificates(tmp_path, "theirs")
    environment = {
        "SPARKRAY_TLS_CA": ours.ca,
        "SPARKRAY_TLS_CERT": ours.cert,
        "SPARKRAY_TLS_KEY": ours.key,
    }

    def call(tls: TLSFiles | None, token: bytes = TOKEN) -> Any:
        request = control.ListNodes()
        return client.call_head(head.address, token, "ListNodes", request, 5.0, tls)

    with start_head(**environment) as head:
        assert call(ours) == control.NodeList([])
        for wrong in (None, theirs, TLSFiles(ours.ca, theirs.cert, theirs.key)):
            with pytest.raises((ConnectionError, TimeoutError)):
                call(wrong)
        with pytest.raises(exceptions.ProtocolError, match="token"):
            call(ours, b"wrong")


def test_contexts_for_task_channels_know_each_other(tmp_path: Path) -> None:
    files = certificates(tmp_path, "ours")

    async def main() -> None:
        got = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: Any) -> None:
            got.set_result(await reader.readexactly(5))
            writer.close()

        context = files.server_context()
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=files.client_context(), server_hostname="127.0.0.1"
        )
        writer.write(b"hello")
        assert await asyncio.wait_for(got, 5) == b"hello"
        writer.close()
        listening.close()

    asyncio.run(main())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_in_flight_fails_when_its_connection_is_closed(cancelled: bool) -> None:
    """It must not look as if the task that makes it were cancelled: that would end it
    without a word."""

    async def check() -> None:
        came = asyncio.Event()
        ends: list[asyncio.StreamWriter] = []

        def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(writer)
            came.set()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peer = Peer(f"127.0.0.1:{port}", TOKEN)
        call = asyncio.ensure_future(
            peer.call("Head", "Status", control.ClusterStatus(), control.Ok, 30.0)
        )
        await came.wait()
        if cancelled:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await peer.close()
        if not cancelled:
            with pytest.raises(ConnectionError, match=f"127.0.0.1:{port} was closed"):
                await call
        server.close()
        for end in ends:
            end.close()
            await end.wait_closed()

    asyncio.run(check())
