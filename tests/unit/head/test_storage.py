"""The head's file: what is read is what was written, or nothing at all."""

from __future__ import annotations

import logging
import sqlite3
import stat
from pathlib import Path

import pytest

from sparkray.head.state.saved import Row, Tables
from sparkray.head.storage import Storage, load

CLUSTER = b"c" * 8


def empty() -> Tables:
    return Tables.empty(10.0, 2.0)


def written(path: Path) -> None:
    storage, _ = load(path, CLUSTER, empty)
    storage.write([Row("kv", b"\x92\xa2ns\xc4\x01k", b"v"), Row("kv", b"x", b"y")])
    storage.write([Row("kv", b"x", None)])
    storage.close()


def test_rows_are_there_after_the_file_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "head.db"
    written(path)
    storage, tables = load(path, CLUSTER, empty)
    assert tables.kv.all_keys() == [("ns", b"k")]
    assert tables.kv.get("ns", b"k") == b"v"
    storage.close()


def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    storage, _ = load(tmp_path / "head.db", CLUSTER, empty)
    storage.write([Row("kv", b"x", b"y")])
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()
    }
    assert set(modes.values()) == {0o600} and "head.db-wal" in modes
    storage.close()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200:] = b"\x55" * (len(data) - 200)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def make_text(path: Path) -> None:
    path.write_text("this was never a database" * 100)


def from_the_future(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()


def spoil_one_row(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("INSERT INTO rows VALUES ('job', x'01', x'c1')")
    db.commit()
    db.close()


def of_another_cluster(path: Path) -> None:
    path.unlink()
    load(path, b"d" * 8, empty)[0].close()


@pytest.mark.parametrize(
    "spoil",
    [damage, cut, make_text, from_the_future, spoil_one_row, of_another_cluster],
)
def test_a_file_that_cannot_be_used_is_set_aside_as_it_is(
    tmp_path: Path, spoil: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "head.db"
    written(path)
    assert callable(spoil)
    spoil(path)
    before = path.read_bytes()
    with caplog.at_level(logging.ERROR):
        storage, tables = load(path, CLUSTER, empty)
    (aside,) = tmp_path.glob("head.db.set-aside-*[0-9]")
    assert aside.read_bytes() == before
    (record,) = caplog.records
    for text in (str(path), str(aside), "actors"):
        assert text in record.getMessage()
    assert tables.kv.all_keys() == [] and tables.jobs.all() == []
    storage.write([Row("kv", b"\x92\xa2ns\xc4\x01k", b"new")])
    storage.close()
    storage, tables = load(path, CLUSTER, empty)
    assert tables.kv.get("ns", b"k") == b"new"
    storage.close()


def test_what_a_full_disk_did_not_take_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "head.db"
    storage, _ = load(path, CLUSTER, empty)
    (pages,) = storage._db.execute("PRAGMA page_count").fetchone()
    storage._db.execute(f"PRAGMA max_page_count={pages}")
    storage.write([Row("kv", b"\x92\xa2ns\xc4\x01k", b"v" * 100_000)])
    storage.write([Row("kv", b"\x92\xa2ns\xc4\x01l", b"w")])
    assert len([r for r in caplog.records if "full" in r.getMessage()]) == 1
    storage._db.execute("PRAGMA max_page_count=1000000")
    storage.write([Row("kv", b"\x92\xa2ns\xc4\x01m", b"x")])
    storage.close()
    storage, tables = load(path, CLUSTER, empty)
    assert [key for _, key in tables.kv.all_keys()] == [b"k", b"l", b"m"]
    storage.close()


def test_a_file_that_somebody_else_has_open_is_not_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "head.db"
    storage, _ = load(path, CLUSTER, empty)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Storage(path, wait_s=0.1)
    assert [p for p in tmp_path.iterdir() if "aside" in p.name] == []
    storage.close()
