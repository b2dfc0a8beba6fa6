import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparkray.launch import session_dir

CLUSTER, NODE, TOKEN = b"c" * 8, b"n" * 28, b"\x07" * 32
NAME = f"{CLUSTER.hex()}-{NODE.hex()[:8]}"


def create(parent: Path, node: bytes = NODE) -> session_dir.SessionDir:
    return session_dir.create(parent, CLUSTER, node, TOKEN)


def test_everything_in_it_is_the_users_alone(tmp_path: Path) -> None:
    parent = session_dir.root("", {"TMPDIR": str(tmp_path)})
    session = create(parent)
    session.announce({"pid": os.getpid()})
    for path in (parent, *parent.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert session.token_file.read_text() == TOKEN.hex()
    session.remove()
    assert list(parent.iterdir()) == []
    session.remove()


def test_tmpdir_is_honoured_and_each_user_has_a_folder(tmp_path: Path) -> None:
    parent = session_dir.root("", {"TMPDIR": str(tmp_path)})
    assert parent == tmp_path / f"sparkray-{os.getuid()}"
    assert session_dir.default_root({}) == Path(f"/tmp/sparkray-{os.getuid()}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_folder_of_another_user_is_refused_by_name(tmp_path: Path) -> None:
    taken = tmp_path / f"sparkray-{os.getuid()}"
    taken.mkdir()
    os.chown(taken, 12345, 12345)
    with pytest.raises(PermissionError, match=r"belongs to user 12345.*TMPDIR"):
        session_dir.root("", {"TMPDIR": str(tmp_path)})


def test_a_folder_where_anyone_may_remove_files_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="anyone may remove"):
        session_dir.root(str(tmp_path), {})
    tmp_path.chmod(0o1777)
    assert session_dir.root(str(tmp_path), {}) == tmp_path


def test_a_link_in_the_place_of_the_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"sparkray-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        session_dir.root("", {"TMPDIR": str(tmp_path)})


def test_a_long_root_gets_a_short_directory_and_an_entry(tmp_path: Path) -> None:
    parent = tmp_path / ("long" * 25)
    parent.mkdir(mode=0o700)
    session = create(parent)
    longest = session.path / "sockets" / "0123456789abcdef.sock"
    assert len(os.fsencode(longest)) < 104
    session.announce({"session_dir": str(session.path)})
    [about] = session_dir.announced(parent)
    assert about["session_dir"] == str(session.path) != str(session.entry)
    session.remove()
    assert not session.path.exists() and not session.entry.exists()


CREATE_AND_DIE = """
import os, sys
from pathlib import Path
from sparkray.launch import session_dir
session = session_dir.create(Path(sys.argv[1]), b"c" * 8, b"d" * 28, b"t")
session.segments.mkdir()
session.announce({"session_dir": str(session.path)})
print(session.path)
os._exit(9)
"""


@pytest.mark.parametrize("depth", ["", "long" * 25], ids=["short", "long"])
def test_only_what_dead_daemons_left_is_swept(tmp_path: Path, depth: str) -> None:
    parent = tmp_path / depth
    parent.mkdir(mode=0o700, exist_ok=True)
    (parent / "someone-elses").mkdir()
    (parent / "a-file").touch()
    living = create(parent)
    living.announce({"mine": True})
    died = subprocess.run(
        [sys.executable, "-c", CREATE_AND_DIE, str(parent)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    left = Path(died.stdout.strip())
    dead_name = f"{CLUSTER.hex()}-{(b'd' * 28).hex()[:8]}"
    segments = session_dir.SEGMENTS_PARENT / f"sparkray-{dead_name}"
    assert died.returncode == 9 and left.is_dir() and segments.is_dir()
    assert list(session_dir.announced(parent)) == [{"mine": True}]
    assert session_dir.sweep(parent) == [dead_name]
    assert not left.exists() and not segments.exists()
    names = {path.name for path in parent.iterdir()}
    assert names == {"someone-elses", "a-file", NAME}
    assert session_dir.sweep(parent) == []
    assert session_dir.sweep(parent / "nowhere") == []
    living.remove()


def test_nobody_sees_a_directory_before_its_lock_is_held(tmp_path: Path) -> None:
    session = create(tmp_path)
    fd = os.open(session.entry / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(fd)
    session.announce({"a": 1})
    assert json.loads((session.entry / "agent.json").read_text()) == {"a": 1}
    session.remove()


def test_segments_are_swept_unless_somebody_holds_them_or_they_are_young(
    tmp_path: Path,
) -> None:
    held, left = tmp_path / "sparkray-held", tmp_path / "sparkray-left"
    for directory in (held, left):
        directory.mkdir()
        (directory / "segment").write_bytes(b"x")
    fd = os.open(held, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert session_dir.sweep_segments(tmp_path, young_s=3600.0) == []
    assert session_dir.sweep_segments(tmp_path, young_s=0.0) == ["sparkray-left"]
    assert held.exists() and not left.exists()
    os.close(fd)
