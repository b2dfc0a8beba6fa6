"""The head's state on disk: SQLite, written through, read once at the start.

A transaction is in the operating system's hands before anybody is answered: whatever
kills the head's process takes nothing along.  A crash of the whole host may take the
last moments (``synchronous=NORMAL``), and all that ran on the host as well.

A file that is damaged, or was written by a later version, is set aside as it is, and
the head starts with nothing: nothing of it is used, as half of a state is worse than
none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sparkray.exceptions import ProtocolError
from sparkray.head.state import saved
from sparkray.head.state.saved import About, Row, Tables
from sparkray.protocol import codec

_log = logging.getLogger(__name__)

#: Grows when rows of before cannot be read any more.
VERSION: Final = 1
#: Files that SQLite keeps beside its own.
_BESIDE: Final = ("", "-wal", "-shm")
_UPSERT: Final = (
    "INSERT INTO rows (kind, key, body) VALUES (?, ?, ?)"
    " ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body"
)
_DELETE: Final = "DELETE FROM rows WHERE kind = ? AND key = ?"


class UnusableError(Exception):
    """The file is not one that this version can use; says why."""


class Storage:
    """An open file.  Used by one loop.

    Args:
        path: of a file that this version made, or of none yet.
        wait_s: for another process that has it open and is about to end.

    Raises:
        UnusableError: it is damaged, or of another version.
        sqlite3.OperationalError: it cannot be made, or another process has it open.
    """

    def __init__(self, path: Path, wait_s: float = 5.0) -> None:
        self.path = path
        self._unwritten: list[Row] = []
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite's would be 0644
        self._db = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        try:
            self.rows = self._open()
        except BaseException as error:
            self._db.close()
            if type(error) is sqlite3.DatabaseError:  # damaged; no subclass means that
                raise UnusableError(str(error)) from error
            raise

    def _open(self) -> list[Row]:
        """Prepare the file; return all that is in it."""
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        (version,) = run("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise UnusableError(
                f"it has version {version}, made by a later sparkray; this one knows"
                f" {VERSION}"
            )
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        if version == 0:
            self._make()
        (verdict, *_more) = run("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise UnusableError(verdict)
        read = run("SELECT kind, key, body FROM rows ORDER BY rowid")
        return [Row(*row) for row in read]

    def _make(self) -> None:
        with self._transaction():
            self._db.execute(
                "CREATE TABLE rows (kind TEXT NOT NULL, key BLOB NOT NULL,"
                " body BLOB NOT NULL, PRIMARY KEY (kind, key))"
            )
            self._db.execute(f"PRAGMA user_version={VERSION}")

    def write(self, rows: list[Row]) -> None:
        """Write rows, all or none.

        If the disk does not take them, that is logged, and they are written together
        with the next ones: a full disk must not end a cluster that runs.
        """
        rows = self._unwritten + rows
        try:
            with self._transaction():
                for kind, key, body in rows:
                    if body is None:
                        self._db.execute(_DELETE, (kind, key))
                    else:
                        self._db.execute(_UPSERT, (kind, key, body))
        except sqlite3.OperationalError as error:
            if not self._unwritten:
                _log.error("the state of the head is not in %s: %s", self.path, error)
            self._unwritten = rows
            return
        self._unwritten = []

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Repeatable."""
        self._db.close()


def load(
    path: Path, cluster_id: bytes, empty: Callable[[], Tables]
) -> tuple[Storage, Tables]:
    """Open the file of a cluster's head; return it with what the head knew.

    Args:
        empty: makes tables without anything in them.

    Raises:
        sqlite3.Error: there can be no such file here.
        OSError: as well.
    """
    try:
        return _load(path, cluster_id, empty())
    except UnusableError as error:
        aside = _set_aside(path)
        _log.error(
            "%s cannot be used (%s): it is now %s.  The head starts without jobs,"
            " actors, placement groups and stored values of before.",
            *(path, error, aside),
        )
        return _load(path, cluster_id, empty())


def _load(path: Path, cluster_id: bytes, tables: Tables) -> tuple[Storage, Tables]:
    storage = Storage(path)
    try:
        known = saved.about(storage.rows) or About(cluster_id, 0)
        if known.cluster_id != cluster_id:
            raise UnusableError(f"it is of cluster {known.cluster_id.hex()}")
        now = About(cluster_id, known.starts + 1)
        saved.restore(tables, storage.rows, time.monotonic(), now.starts)
    except (ProtocolError, KeyError) as error:
        storage.close()
        raise UnusableError(f"a row cannot be read: {error}") from error
    except UnusableError:
        storage.close()
        raise
    storage.rows = []
    storage.write([Row(saved.HEAD, b"", codec.encode(now))])
    return storage, tables


def _set_aside(path: Path) -> Path:
    """Rename a file and those that belong to it; return its new name."""
    aside = path.with_name(f"{path.name}.set-aside-{time.time_ns()}")
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside
