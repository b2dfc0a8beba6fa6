"""Objects between two stores over Arrow Flight, on real ports."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkray.config import Settings
from sparkray.exceptions import ObjectLostError, ProtocolError
from sparkray.store import flight, segment
from sparkray.store.local import NodeStore
from sparkray.store.serialize import deserialize, serialize

OBJECT = b"o" * 16 + bytes(12)
TOKEN = b"the token of this cluster"


def run(
    body: Callable[[NodeStore, str, NodeStore], Awaitable[Any]],
    tmp_path: Path,
    files: Any = None,
) -> None:
    async def main() -> None:
        limit, settings = 64 * 1024 * 1024, Settings()
        names = [f"/dev/shm/sparkray-test-{os.getpid()}-{side}" for side in "ab"]
        here, there = (NodeStore(n, limit, str(tmp_path), settings) for n in names)
        server = flight.FlightStore(there, TOKEN, "127.0.0.1", files=files)
        try:
            await asyncio.wait_for(body(there, await server.start(), here), 50)
        finally:
            await server.close()
            await here.close()
            await there.close()

    asyncio.run(main())


async def put(store: NodeStore, value: Any) -> int:
    serialized = serialize(value)
    path, capacity = await store.create("writer", OBJECT, serialized.size_bytes)
    segment.WritableSegments().write(path, capacity, serialized)
    store.seal(OBJECT, b"o" * 16)
    return serialized.size_bytes


@pytest.mark.parametrize("size", [1, 100_000, 2_000_000])
def test_an_object_is_pulled_whole_from_another_node(tmp_path: Path, size: int) -> None:
    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        value = np.random.default_rng(0).random(size)
        await put(there, value)
        path, length = await here.pin(
            "reader", OBJECT, lambda id_: here.pull(id_, address, TOKEN)
        )
        back = deserialize(segment.map_for_reading(path, length))
        np.testing.assert_array_equal(back, value)
        there.free([OBJECT])
        while there.usage().used_bytes:  # the server lets go of it after the answer
            await asyncio.sleep(0.01)

    run(body, tmp_path)


def test_nobody_reads_without_the_token(tmp_path: Path) -> None:
    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        await put(there, b"secret")
        for token in (b"", b"wrong", TOKEN + b"x"):
            with pytest.raises(ProtocolError, match="does not accept the token"):
                await here.pin(
                    "reader",
                    OBJECT,
                    lambda id_, token=token: here.pull(id_, address, token),  # type: ignore[misc]
                )
        assert here.usage().used_bytes == 0

    run(body, tmp_path)


def test_an_object_that_is_not_there_is_lost_and_takes_no_room(tmp_path: Path) -> None:
    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        with pytest.raises(ObjectLostError, match=f"{address}: this node has no copy"):
            await here.pin("reader", OBJECT, lambda id_: here.pull(id_, address, TOKEN))
        assert here.usage().used_bytes == 0

    run(body, tmp_path)


def test_a_dead_address_is_an_error_within_the_deadline(tmp_path: Path) -> None:
    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        with pytest.raises(ObjectLostError):
            await here.pull(OBJECT, "127.0.0.1:1", TOKEN, timeout_s=5.0)

    run(body, tmp_path)


def test_any_arrow_client_can_read_an_object(tmp_path: Path) -> None:
    program = """
import sys
from pyarrow import flight
client = flight.connect("grpc://" + sys.argv[1])
token = b"Bearer " + sys.argv[2].encode()
options = flight.FlightCallOptions(headers=[(b"authorization", token)])
table = client.do_get(flight.Ticket(bytes.fromhex(sys.argv[3])), options).read_all()
print(table.num_rows, table.schema.field(0).name)
"""

    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        size = await put(there, np.arange(1000))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            address,
            TOKEN.decode(),
            OBJECT.hex(),
            stdout=subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert out.decode().split() == [str(size), "data"]

    run(body, tmp_path)


def test_with_tls_both_sides_show_a_certificate(tmp_path: Path) -> None:
    from sparkray.transport.tls import TLSFiles

    files = TLSFiles(*make_certificates(tmp_path))

    async def body(there: NodeStore, address: str, here: NodeStore) -> None:
        size = await put(there, np.arange(100_000))
        memory = memoryview(bytearray(size))
        got = await asyncio.to_thread(
            flight.fetch, address, TOKEN, OBJECT, lambda _: memory, 20.0, files
        )
        assert got == size and deserialize(memory)[-1] == 99_999
        with pytest.raises(ObjectLostError):
            await asyncio.to_thread(
                flight.fetch, address, TOKEN, OBJECT, lambda _: memory, 5.0
            )

    run(body, tmp_path, files)


def make_certificates(directory: Path) -> list[str]:
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=sparkray test", "-keyout", key, "-out", cert]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(command, check=True, capture_output=True)
    return [cert, cert, key]
