import os
import socket
import zipfile
from pathlib import Path

import pytest

from sparkray.api import packages, packing, runtime_env


def _tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def _names(root: Path, *excludes: str) -> list[str]:
    found = packing.entries(str(root), excludes)
    return [entry.name for entry in found if not entry.is_dir]


def test_equal_contents_are_equal_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    zips = []
    for name in "xy":
        root = _tree(tmp_path / name, "b/c.txt", "a.txt")
        os.utime(root / "a.txt", (len(zips) * 1000, 0))
        with packing.write_zip(packing.entries(str(root))) as file:
            file.seek(0)
            zips.append(file.read())
    assert zips[0] == zips[1]


def test_repositories_and_compiled_modules_are_left_out(tmp_path: Path) -> None:
    _tree(tmp_path, ".git/HEAD", "p/__pycache__/m.pyc", "p/m.py", ".env")
    assert _names(tmp_path) == [".env", "p/m.py"]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["*.bin"], ["a.txt", "sub/a.txt"]),
        (["sub"], ["a.txt", "b.bin"]),
        (["sub/"], ["a.txt", "b.bin"]),
        (["a.txt/"], ["a.txt", "b.bin", "sub/a.txt", "sub/c.bin"]),
        (["/a.txt"], ["b.bin", "sub/a.txt", "sub/c.bin"]),
        (["sub/*.bin"], ["a.txt", "b.bin", "sub/a.txt"]),
        (["**/a.txt"], ["b.bin", "sub/c.bin"]),
        (["sub/**"], ["a.txt", "b.bin"]),
        (["*.bin", "!b.bin"], ["a.txt", "b.bin", "sub/a.txt"]),
        (["[ab].*"], ["sub/c.bin"]),
        (["?.txt"], ["b.bin", "sub/c.bin"]),
        (["", "./b.bin"], ["a.txt", "sub/a.txt", "sub/c.bin"]),
    ],
)
def test_what_is_excluded_stays_here(
    tmp_path: Path, patterns: list[str], left: list[str]
) -> None:
    _tree(tmp_path, "a.txt", "b.bin", "sub/a.txt", "sub/c.bin")
    assert _names(tmp_path, *patterns) == left


def test_whole_paths_can_be_excluded(tmp_path: Path) -> None:
    _tree(tmp_path, "a.txt", "sub/a.txt")
    assert _names(tmp_path, str(tmp_path / "sub")) == ["a.txt"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    outside = _tree(tmp_path / "outside", "x.txt")
    root = _tree(tmp_path / "root", "a.txt")
    (root / "file").symlink_to(outside / "x.txt")
    (root / "dir").symlink_to(outside)
    (root / "nowhere").symlink_to(root / "missing")
    (root / "itself").symlink_to("itself")
    (root / "up").symlink_to(root)
    assert _names(root) == ["a.txt", "dir/x.txt", "file"]


def test_sockets_and_pipes_are_left_out(tmp_path: Path) -> None:
    _tree(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "s"))
        assert _names(tmp_path) == ["a.txt"]


def test_programs_stay_executable_and_empty_directories_are_kept(
    tmp_path: Path,
) -> None:
    _tree(tmp_path, "run.sh", "a.txt")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "empty").mkdir()
    with packing.write_zip(packing.entries(str(tmp_path)), "p/") as file:
        made = zipfile.ZipFile(file)
        assert made.namelist() == ["p/a.txt", "p/empty/", "p/run.sh"]
        modes = [info.external_attr >> 16 & 0o777 for info in made.infolist()]
    assert modes == [0o644, 0o755, 0o755]


def test_a_directory_that_is_too_large_is_refused_with_its_largest_files(
    tmp_path: Path,
) -> None:
    _tree(tmp_path, "small.txt", "data/large.bin")
    os.truncate(tmp_path / "data/large.bin", 1 << 30)
    env = runtime_env.normalize({"working_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"1024\.0 MiB.*data/large\.bin \(1024.*excl"):
        packages.pack(env)
    excluding = {"working_dir": str(tmp_path), "excludes": ["large.bin"]}
    _, made = packages.pack(runtime_env.normalize(excluding))
    packages.close(made)


def test_a_path_becomes_an_address_that_follows_the_content(tmp_path: Path) -> None:
    _tree(tmp_path, "p/__init__.py")
    module = {"py_modules": [str(tmp_path / "p")]}
    first, made = packages.pack(runtime_env.normalize(module))
    again, known = packages.pack(runtime_env.normalize(module))
    assert first == again and known[0].file is None, "packed once"
    assert packages.pack(first) == (first, []), "an address stays what it is"
    _tree(tmp_path, "p/more.py")
    other, changed = packages.pack(runtime_env.normalize(module))
    assert other != first
    for package in (*made, *known, *changed):
        package.close()


def test_excludes_alone_change_nothing() -> None:
    assert packages.pack(runtime_env.normalize({"excludes": ["x"]})) == ("", [])


def test_a_whole_disk_is_refused_before_all_of_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ENOUGH", 3)
    _tree(tmp_path, "a.bin", *(f"b{number}.txt" for number in range(10)))
    os.truncate(tmp_path / "a.bin", 1 << 30)
    found = packing.entries(str(tmp_path))
    assert len(found) == 3
    with pytest.raises(ValueError, match=r"at least 1024\.0 MiB.*a\.bin"):
        packing.check_size("it", found)


def test_links_that_multiply_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing.archives, "MAX_MEMBERS", 500)
    names = "abcdef"
    for name in names:
        (tmp_path / name).mkdir()
        for other in names:
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    with pytest.raises(ValueError, match=r"more than 500 files.*to_.*excludes"):
        packing.entries(str(tmp_path))


def test_a_name_that_is_not_utf8_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"b\xff.txt")).write_text("x")
    with pytest.raises(ValueError, match=r"b.*txt.* not UTF-8") as refused:
        packing.entries(str(tmp_path))
    assert str(tmp_path) in str(refused.value)
    assert packing.entries(str(tmp_path), ["b*.txt"]) == []
