"""Segments as real files, between real processes."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sparkray.store import segment
from sparkray.store.serialize import Serialized, deserialize, serialize
from sparkray.store.state.segments import capacity_for


@pytest.fixture
def path() -> Iterator[str]:
    name = f"/dev/shm/sparkray-test-{os.getpid()}"
    yield name
    Path(name).unlink(missing_ok=True)


def store(path: str, value: Any) -> Serialized:
    serialized = serialize(value)
    capacity = capacity_for(serialized.size_bytes)
    segment.create_segment(path, capacity)
    segment.WritableSegments().write(path, capacity, serialized)
    return serialized


def test_a_segment_is_private_to_its_user_and_never_made_twice(path: str) -> None:
    segment.create_segment(path, 8192)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.stat(path).st_blocks * 512 >= 8192
    with pytest.raises(FileExistsError):
        segment.create_segment(path, 8192)


def test_lack_of_room_is_an_error_that_names_the_directory(path: str) -> None:
    with pytest.raises(OSError, match=r"bytes are free: '/dev/shm'") as caught:
        segment.create_segment(path, 1 << 50)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(1000.0),
        pd.DataFrame({"a": range(1000), "b": ["x"] * 1000}),
        pa.table({"a": range(1000)}),
    ],
    ids=["numpy", "pandas", "arrow"],
)
def test_a_view_keeps_the_mapping_until_the_last_one_is_gone(
    path: str, value: Any
) -> None:
    size = store(path, value).size_bytes
    released = threading.Event()
    back = deserialize(segment.map_for_reading(path, size, released.set))
    segment.remove_segment(path, unmapped=False)
    part = back[10:20] if not isinstance(back, pa.Table) else back.slice(10, 10)
    whole = value[10:20] if not isinstance(value, pa.Table) else value.slice(10, 10)
    del back
    gc.collect()
    assert not released.is_set()
    same = part.equals(whole) if hasattr(part, "equals") else (part == whole).all()
    assert same
    del part
    gc.collect()
    assert released.is_set()


def test_mappings_use_up_no_file_descriptors(path: str) -> None:
    size = store(path, np.arange(10)).size_bytes
    before = len(os.listdir("/proc/self/fd"))
    views = [segment.map_for_reading(path, size) for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len({bytes(view) for view in views}) == 1


def test_a_reader_that_writes_all_the_same_changes_only_its_own_copy(path: str) -> None:
    size = store(path, np.zeros(1000)).size_bytes
    mine = segment.map_for_reading(path, size)
    memoryview(mine.obj)[size - 8 : size] = b"\xff" * 8
    assert deserialize(segment.map_for_reading(path, size)).sum() == 0


def test_a_segment_shorter_than_told_is_an_error_and_not_a_crash(path: str) -> None:
    segment.create_segment(path, 4096)
    with pytest.raises(OSError, match="4096 bytes, not 8192"):
        segment.map_for_reading(path, 8192)


def test_a_segment_that_is_written_again_is_mapped_and_holds_the_new_value(
    path: str,
) -> None:
    values = [np.full(100_000, n) for n in range(5)]
    capacity = capacity_for(serialize(values[0]).size_bytes)
    segment.create_segment(path, capacity)
    writer = segment.WritableSegments()
    for value in values:
        serialized = serialize(value)
        writer.write(path, capacity, serialized)
        view = segment.map_for_reading(path, serialized.size_bytes)
        np.testing.assert_array_equal(deserialize(view), value)
    writer.close()


def test_the_writers_cache_stays_within_its_bounds(tmp_path: Path) -> None:
    writer = segment.WritableSegments(max_mappings=2, max_bytes=3 * 4096)
    for name in ("a", "b", "c"):
        segment.create_segment(str(tmp_path / name), 4096)
        for _ in range(3):
            writer.write(str(tmp_path / name), 4096, serialize(name))
    assert len(writer._mappings) == 2 and writer._mapped_bytes == 2 * 4096
    writer.close()


def test_removing_an_unmapped_segment_gives_its_memory_back_at_once(path: str) -> None:
    segment.create_segment(path, 1 << 20)
    kept = segment.map_for_writing(path, 1 << 20)
    fd = os.open(path, os.O_RDONLY)
    segment.remove_segment(path, unmapped=True)
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)
    del kept


def test_another_process_reads_what_this_one_wrote(path: str) -> None:
    size = store(path, {"array": np.arange(100_000), "text": "hello"}).size_bytes
    program = f"""
from sparkray.store.segment import map_for_reading
from sparkray.store.serialize import deserialize
value = deserialize(map_for_reading({path!r}, {size}))
print(value["text"], int(value["array"].sum()), value["array"].flags.writeable)
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert out.stdout.split() == ["hello", str(sum(range(100_000))), "False"]
