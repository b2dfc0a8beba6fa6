from zipfile import ZipInfo

import pytest

from sparkray.protocol import archives
from sparkray.protocol.archives import check_members


def _member(name: str, size_bytes: int = 1) -> ZipInfo:
    made = ZipInfo("x")
    made.filename, made.file_size = name, size_bytes
    return made


def test_what_lies_inside_is_taken() -> None:
    check_members(map(_member, ["a.py", "b/", "b/c..d", "..e", ".hidden/x"]))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\..\\x", ".."])
def test_what_would_be_written_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        check_members([_member(name)])


def test_what_grows_beyond_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    half = archives.MAX_UNPACKED_BYTES // 2
    check_members([_member("a", half), _member("b", half)])
    with pytest.raises(ValueError, match="unpacked"):
        check_members([_member("a", half), _member("b", half + 1)])
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    with pytest.raises(ValueError, match="more than 2 members"):
        check_members([_member(name) for name in "abc"])
