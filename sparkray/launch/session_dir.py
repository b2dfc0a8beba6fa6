"""The session directory of one daemon: made whole, announced, removed.

    <root>/                        temp_dir, or sparkray-<uid> under TMPDIR; 0700
      <cluster>-<node>/            the entry, 0700; its `lock` is held while we live
        lock  token  agent.json  agent.sock  sockets/  logs/  spill/
    /dev/shm/sparkray-<cluster>-<node>/     segments, made by the agent's store

Unix socket paths are short (107 bytes): where the root is too long, everything but
`lock` and `agent.json` lies in a short directory under /tmp, named in `lock`.

Directories of daemons that were killed are removed by the next daemon: theirs are the
locks that can be had.  Nothing here looks at process ids, which are reused, and differ
between containers that share a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

#: Longest directory under which ``sockets/<16 hex digits>.sock`` fits everywhere.
MAX_PATH_BYTES: Final = 103 - len("/sockets/0123456789abcdef.sock")
SEGMENTS_PARENT: Final = Path("/dev/shm")
DISCOVERY: Final = "agent.json"
#: So old a directory of segments may be before its daemon holds it, or a start before
#: it has a directory of its own.
YOUNG_S: Final = 60.0
_LOCK: Final = "lock"
_DRAFT: Final = ".draft-"
#: What a start leaves that was killed at a bad moment.
_UNFINISHED: Final = (f"{_DRAFT}*", "starting-*.log")


def root(given: str, environment: Mapping[str, str]) -> Path:
    """Return the parent of session directories, made if need be.

    Args:
        given: ``temp_dir`` of the settings; "" for the user's own under TMPDIR.

    Raises:
        PermissionError: someone else could change what we put there.
        NotADirectoryError: it is something else.
    """
    path = Path(given) if given else default_root(environment)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat() if given else path.lstat()
    hint = "give another by --temp-dir or TMPDIR"
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is not a directory: {hint}")
    if found.st_uid != os.getuid() and not (given and found.st_uid == 0):
        raise PermissionError(
            f"{path} belongs to user {found.st_uid}, not to {os.getuid()}: {hint}"
        )
    if not given:
        path.chmod(0o700)
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(f"anyone may remove files in {path}: {hint}")
    return path.absolute()


def default_root(environment: Mapping[str, str]) -> Path:
    parent = environment.get("TMPDIR") or "/tmp"
    return Path(parent) / f"sparkray-{os.getuid()}"


class SessionDir(msgspec.Struct, frozen=True):
    """The files of one daemon.  Owned by the process that called `create`."""

    name: str  #: ``<cluster>-<node>``
    entry: Path  #: in the root: where others find the daemon
    path: Path  #: where its files are; mostly the same directory
    lock_fd: int

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def agent_socket(self) -> Path:
        return self.path / "agent.sock"

    @property
    def segments(self) -> Path:
        return SEGMENTS_PARENT / f"sparkray-{self.name}"

    def announce(self, about: Mapping[str, Any]) -> None:
        """Write the discovery file: from now on others may find this daemon."""
        draft = self.entry / f".{DISCOVERY}"
        _write_private(draft, json.dumps(about))
        draft.rename(self.entry / DISCOVERY)

    def hold_segments(self) -> None:
        """Lock the directory of segments, once it is there, for as long as we live: a
        sweep finds what is left of us even if all else of the session is gone."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.segments, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove everything, the discovery file first.  Repeatable."""
        (self.entry / DISCOVERY).unlink(missing_ok=True)
        for directory in (self.segments, self.path, self.entry):
            _remove_tree(directory)
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)


def create(parent: Path, cluster_id: bytes, node_id: bytes, token: bytes) -> SessionDir:
    """Make the directory of a new daemon, with its token file."""
    name = f"{cluster_id.hex()}-{node_id.hex()[:8]}"
    entry = parent / name
    path = entry
    if len(os.fsencode(entry)) > MAX_PATH_BYTES:
        path = _new_dir(Path("/tmp"), "sparkray-")
    draft = _new_dir(parent, _DRAFT)
    lock_fd = os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock_fd, os.fsencode(path))
    draft.rename(entry)
    for part in ("sockets", "logs", "spill"):
        (path / part).mkdir(mode=0o700)
    _write_private(path / "token", token.hex())
    return SessionDir(name, entry, path, lock_fd)


def announced(parent: Path) -> Iterator[dict[str, Any]]:
    """Yield the discovery files of our own daemons under ``parent`` that are alive."""
    for entry in _entries(parent):
        with contextlib.suppress(OSError, ValueError):
            if (fd := _lock_of_dead(entry, fcntl.LOCK_SH)) is None:
                yield json.loads((entry / DISCOVERY).read_text())
            else:
                os.close(fd)


def sweep(parent: Path) -> list[str]:
    """Remove what daemons that were killed left behind; return their names."""
    swept: list[str] = []
    for entry in _entries(parent):
        with contextlib.suppress(OSError):
            if (fd := _lock_of_dead(entry, fcntl.LOCK_EX)) is not None:
                _remove_left(entry)
                os.close(fd)
                swept.append(entry.name)
    for pattern in _UNFINISHED:
        for path in parent.glob(pattern):
            with contextlib.suppress(OSError):
                if _is_old(path.lstat(), YOUNG_S):
                    if path.is_dir():
                        _remove_tree(path)
                    else:
                        path.unlink()
                    swept.append(path.name)
    return swept


def sweep_segments(
    parent: Path = SEGMENTS_PARENT, young_s: float = YOUNG_S
) -> list[str]:
    """Remove our own segment directories that no daemon holds; return their names.

    Args:
        young_s: one that is younger may not be held yet.
    """
    swept: list[str] = []
    for directory in parent.glob("sparkray-*"):
        with contextlib.suppress(OSError):
            if not _is_old(directory.lstat(), young_s):
                continue
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(directory)
                swept.append(directory.name)
            finally:
                os.close(fd)
    return swept


def _is_old(found: os.stat_result, young_s: float) -> bool:
    """Tell whether it is ours, and older than something that is just being made."""
    return found.st_uid == os.getuid() and time.time() - found.st_ctime >= young_s


def _remove_left(entry: Path) -> None:
    path = Path(os.fsdecode((entry / _LOCK).read_bytes()) or entry)
    apart = path != entry and path.parent == Path("/tmp")
    left = [SEGMENTS_PARENT / f"sparkray-{entry.name}", entry, *([path] * apart)]
    for directory in left:
        _remove_tree(directory)


def _entries(parent: Path) -> list[Path]:
    """Return our own entries; what others put there is none of our business."""
    with contextlib.suppress(OSError):
        return [
            path
            for path in parent.iterdir()
            if not path.name.startswith(".") and path.lstat().st_uid == os.getuid()
        ]
    return []


def _lock_of_dead(entry: Path, how: int) -> int | None:
    """Return the lock of a daemon that is gone, taken; None if it is alive."""
    fd = os.open(entry / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _new_dir(parent: Path, prefix: str) -> Path:
    """Make a directory of our own (`tempfile` takes 10 ms to load)."""
    path = parent / f"{prefix}{os.urandom(8).hex()}"
    path.mkdir(mode=0o700)
    return path


def _remove_tree(path: Path) -> None:
    import shutil  # not needed until something ends

    shutil.rmtree(path, ignore_errors=True)


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(fd, "w") as file:
        file.write(text)
