"""Where a store goes and how large it is by default."""

from __future__ import annotations

from pathlib import Path

from sparkray.store.host import free_bytes, memory_bytes
from sparkray.store.sizing import choose_directory, default_limit


def test_a_store_lies_where_it_is_wanted_if_there_is_room(tmp_path: Path) -> None:
    preferred = str(tmp_path / "segments")
    assert choose_directory(preferred, "/elsewhere", 4096) == (preferred, "")


def test_too_little_room_sends_the_store_to_disk_with_a_warning(tmp_path: Path) -> None:
    preferred, limit = str(tmp_path / "segments"), free_bytes(str(tmp_path)) * 2
    directory, warning = choose_directory(preferred, "/elsewhere", limit)
    assert directory == "/elsewhere"
    assert str(tmp_path) in warning and str(limit) in warning


def test_a_mount_that_does_not_exist_sends_the_store_to_disk() -> None:
    assert choose_directory("/no/such/place", "/elsewhere", 1)[0] == "/elsewhere"


def test_the_default_size_is_a_share_of_memory_within_shared_memory() -> None:
    assert 0 < default_limit() <= 0.3 * memory_bytes() + 1
    assert default_limit("/no/such/place") == int(0.3 * memory_bytes())
