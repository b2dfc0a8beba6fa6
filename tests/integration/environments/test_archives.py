"""What a node unpacks, and what it refuses whoever sends it."""

import os
import zipfile
from pathlib import Path

import pytest

from sparkray.agent.archives import unpack
from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.protocol import archives


def _zip(path: Path, *names: str, content: str = "x") -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(name, content)
    return str(path)


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "a/../../outside.py"])
def test_nothing_is_written_outside_of_the_target(tmp_path: Path, name: str) -> None:
    archive = _zip(tmp_path / "x.zip", "inside.py", name)
    target = tmp_path / "deep" / "target"
    with pytest.raises(RuntimeEnvSetupError, match="lies outside"):
        unpack(archive, str(target))
    assert not list(tmp_path.rglob("*.py")), "refused as a whole"


def test_an_archive_that_would_fill_the_disk_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    archive = _zip(tmp_path / "x.zip", "a", "b", content="0" * (1 << 20))
    assert os.path.getsize(archive) < 10_000
    with pytest.raises(RuntimeEnvSetupError, match="more than 1 MiB"):
        unpack(archive, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_link_in_an_archive_is_no_way_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "/etc")
        made.writestr("other/x.py", "x")
    unpack(str(tmp_path / "x.zip"), str(tmp_path / "target"))
    assert not (tmp_path / "target" / "link").is_symlink()
    assert (tmp_path / "target" / "other" / "x.py").read_text() == "x"
