"""Objects on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparkray.store.spill import (
    SpillDamagedError,
    read_spill,
    verify_spill,
    write_spill,
)

DATA = os.urandom(9_000_000)


def test_what_was_spilled_is_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "1")
    write_spill(path, memoryview(DATA))
    into = memoryview(bytearray(len(DATA)))
    read_spill(path, into)
    assert into == DATA
    verify_spill(path, len(DATA))
    assert Path(path).read_bytes()[: len(DATA)] == DATA  # as in a segment
    assert os.listdir(tmp_path) == ["1"]
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", [0, 40, 8_999_999, 9_000_000, 9_000_008, 9_000_016])
def test_an_altered_file_is_noticed(tmp_path: Path, place: int) -> None:
    path = tmp_path / "1"
    write_spill(str(path), memoryview(DATA))
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(SpillDamagedError):
        read_spill(str(path), memoryview(bytearray(len(DATA))))
    with pytest.raises(SpillDamagedError):
        verify_spill(str(path), len(DATA))


@pytest.mark.parametrize("length", [0, 31, 1_000_000, 9_000_000, 9_000_031])
def test_a_file_cut_off_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "1"
    write_spill(str(path), memoryview(DATA))
    os.truncate(path, length)
    with pytest.raises(SpillDamagedError):
        read_spill(str(path), memoryview(bytearray(len(DATA))))
    with pytest.raises(SpillDamagedError):
        verify_spill(str(path), len(DATA))


def test_a_full_disk_is_an_error_that_names_directory_and_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"\d+ bytes are free") as caught:
        write_spill(str(tmp_path / "1"), memoryview(DATA))
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path) == []
