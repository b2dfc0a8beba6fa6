"""A node's store with real files: writing, pinning, spilling, freeing, Flight."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkray.config import Settings
from sparkray.exceptions import ObjectLostError, ObjectStoreFullError
from sparkray.store import segment
from sparkray.store.local import NodeStore
from sparkray.store.serialize import deserialize, serialize

MB = 1024 * 1024
SHM = Path("/dev/shm")


def new_id(number: int, owner: bytes = b"o" * 16) -> bytes:
    return owner + number.to_bytes(12, "big")


def run(
    body: Callable[[NodeStore], Awaitable[Any]],
    tmp_path: Path,
    limit_bytes: int = 10 * MB,
    **settings: Any,
) -> None:
    """Run ``body`` with a store, then see that the store leaves nothing behind."""
    directory = SHM / f"sparkray-test-{os.getpid()}"

    async def main() -> None:
        options = {"store_high_water": 1.0, "store_full_timeout_s": 0.3, **settings}
        store = NodeStore(
            str(directory), limit_bytes, str(tmp_path), Settings(**options)
        )
        try:
            await asyncio.wait_for(body(store), 50)
        finally:
            await store.close()
        assert not directory.exists()
        assert os.listdir(tmp_path) == []

    asyncio.run(main())


async def put(store: NodeStore, number: int, value: Any, **options: Any) -> str:
    serialized = serialize(value)
    path, capacity = await store.create(
        "writer", new_id(number), serialized.size_bytes, **options
    )
    segment.WritableSegments().write(path, capacity, serialized)
    store.seal(new_id(number), b"o" * 16, "writer")
    return path


async def read(store: NodeStore, number: int, client: str = "reader") -> Any:
    path, size = await store.pin(client, new_id(number))
    return deserialize(segment.map_for_reading(path, size))


def block(number: int, megabytes: int = 3) -> Any:
    return np.full(megabytes * MB - 4096, number, np.uint8)


def test_what_was_put_can_be_read_and_its_memory_is_used_again(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        path = await put(store, 1, block(1))
        assert (await read(store, 1) == block(1)).all()
        assert store.contains(new_id(1)) and store.size_of(new_id(2)) is None
        store.unpin("reader", [new_id(1)])
        store.free([new_id(1)])
        assert (store.usage().used_bytes, store.usage().warm_bytes) == (0, 3 * MB)
        assert await put(store, 2, block(2)) == path

    run(body, tmp_path)


def test_five_times_the_store_can_be_put_and_read(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        for number in range(16):
            await put(store, number, block(number), timeout_s=20.0)
            assert store.usage().used_bytes <= 10 * MB
        for number in range(16):
            value = await read(store, number)
            assert value[0] == value[-1] == number
            store.unpin("reader", [new_id(number)])
        assert "on disk" in store.usage().text

    run(body, tmp_path)


def test_many_readers_and_writers_at_once_all_come_to_an_end(tmp_path: Path) -> None:
    async def work(store: NodeStore, number: int) -> None:
        await put(store, number, block(number), timeout_s=30.0)
        await asyncio.sleep(0)
        value = await read(store, number, f"reader {number}")
        assert value[7] == number
        store.forget_client(f"reader {number}")
        if number % 2:
            store.free([new_id(number)])

    async def body(store: NodeStore) -> None:
        await asyncio.gather(*(work(store, number) for number in range(30)))

    run(body, tmp_path)


def test_a_view_stays_valid_when_its_object_is_freed(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1))
        view = await read(store, 1)
        store.free([new_id(1)])
        for number in range(2, 6):
            await put(store, number, block(number), timeout_s=20.0)
        assert (view == 1).all()

    run(body, tmp_path)


def test_a_full_store_says_by_what_it_is_full(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await read(store, 1)
        with pytest.raises(ObjectStoreFullError, match="in use by readers"):
            await put(store, 2, block(2))
        with pytest.raises(ObjectStoreFullError, match="larger than the store"):
            await put(store, 3, block(3, 11))
        store.unpin("reader", [new_id(1)])
        await put(store, 2, block(2), timeout_s=20.0)

    run(body, tmp_path)


def test_a_spilled_object_that_finds_no_room_is_read_on_disk(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await put(store, 2, block(2, 8), timeout_s=20.0)
        await read(store, 2)
        path, size = await store.pin("other", new_id(1))
        assert path.startswith(str(tmp_path))
        value = deserialize(segment.map_for_reading(path, size))
        store.free([new_id(1)])
        assert os.path.exists(path) and (value == block(1, 8)).all()
        store.unpin("other", [new_id(1)])
        assert not os.path.exists(path) and (value == block(1, 8)).all()

    run(body, tmp_path)


def test_a_damaged_file_is_not_read_on_disk_either(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await put(store, 2, block(2, 8), timeout_s=20.0)
        await read(store, 2)
        (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
        with file.open("r+b") as altered:
            altered.seek(5 * MB)
            altered.write(b"\xff")
        with pytest.raises(ObjectLostError, match="could not be read back"):
            await store.pin("other", new_id(1))
        assert not file.exists() and not store.contains(new_id(1))

    run(body, tmp_path)


def test_a_create_waits_until_a_pin_is_gone(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await read(store, 1)
        waiting = asyncio.create_task(put(store, 2, block(2, 8), timeout_s=20.0))
        while not store.usage().waiting:
            await asyncio.sleep(0)
        store.unpin("reader", [new_id(1)])
        await waiting

    run(body, tmp_path)


def test_a_full_disk_fails_the_put_with_the_directory_and_frees_heal_it(
    tmp_path: Path,
) -> None:
    blocker = tmp_path / f"sparkray-test-{os.getpid()}-spill"

    async def body(store: NodeStore) -> None:
        blocker.write_text("in the way")  # so that no spill can be written
        await put(store, 1, block(1, 8))
        with pytest.raises(ObjectStoreFullError, match="spilling to disk failed") as e:
            await put(store, 2, block(2, 8), timeout_s=1.0)
        assert str(blocker) in str(e.value)
        assert (await read(store, 1) == 1).all()
        store.forget_client("reader")
        store.free([new_id(1)])
        await put(store, 2, block(2, 8))
        blocker.unlink()

    run(body, tmp_path)


def test_a_damaged_file_on_disk_loses_its_object_and_says_so(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await put(store, 2, block(2, 8), timeout_s=20.0)
        (file,) = tmp_path.glob("*/*")
        os.truncate(file, 1000)
        with pytest.raises(ObjectLostError, match="could not be read back"):
            await store.pin("reader", new_id(1))
        assert not store.contains(new_id(1))

    run(body, tmp_path)


def test_what_is_not_here_is_fetched_once_for_all_who_ask(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        calls = []

        async def fetch(object_id: bytes) -> None:
            calls.append(object_id)
            await put(store, 1, block(1), primary=False)

        await put(store, 2, block(2, 8))
        pins = (store.pin(f"r{n}", new_id(1), fetch) for n in range(3))
        assert len({path for path, _ in await asyncio.gather(*pins)}) == 1
        assert calls == [new_id(1)]

    run(body, tmp_path)


def test_a_fetch_that_fails_fails_the_pin_with_its_reason(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        async def fetch(object_id: bytes) -> None:
            raise ObjectLostError(object_id.hex(), "no node has it")

        with pytest.raises(ObjectLostError, match="no node has it"):
            await store.pin("reader", new_id(1), fetch)
        with pytest.raises(ObjectLostError, match="no copy"):
            await store.pin("reader", new_id(1))

    run(body, tmp_path)


def test_a_pin_waits_for_an_object_that_is_being_written(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        path, _ = await store.create("writer", new_id(1), 4096)
        assert await store.create("writer", new_id(1), 4096) == (path, 4096)
        pin = asyncio.create_task(store.pin("reader", new_id(1)))
        await asyncio.sleep(0)
        store.seal(new_id(1), b"o" * 16)
        assert await pin == (path, 4096)
        lost = asyncio.create_task(store.create("writer", new_id(2), 4096))
        await lost
        pin = asyncio.create_task(store.pin("reader", new_id(2)))
        await asyncio.sleep(0)
        store.forget_client("writer")
        with pytest.raises(ObjectLostError):
            await pin

    run(body, tmp_path)


def test_the_objects_of_an_owner_that_is_gone_are_freed(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1))
        await store.create("writer", new_id(2), 4096)
        store.free_owner(b"o" * 16)
        store.seal(new_id(2), b"o" * 16)
        assert store.usage().used_bytes == 0
        assert not store.contains(new_id(1)) and not store.contains(new_id(2))

    run(body, tmp_path)


def test_freed_memory_goes_back_to_the_system_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkray.store.local._WARM_S", 0.05)

    async def body(store: NodeStore) -> None:
        path = await put(store, 1, block(1))
        store.free([new_id(1)])
        assert store.usage().warm_bytes
        deadline = asyncio.get_running_loop().time() + 10
        while os.path.exists(path):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert store.usage().warm_bytes == 0

    run(body, tmp_path)


def test_closing_tells_those_who_wait(tmp_path: Path) -> None:
    async def body(store: NodeStore) -> None:
        await put(store, 1, block(1, 8))
        await read(store, 1)
        waiting = asyncio.create_task(put(store, 2, block(2, 8), timeout_s=30.0))
        while not store.usage().waiting:
            await asyncio.sleep(0)
        await store.close()
        with pytest.raises(ObjectLostError, match="shuts down"):
            await waiting

    run(body, tmp_path)
