"""Which of the driver's modules travel."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from sparkray.api import modules


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_files_packages_and_archives_of_the_drivers_own_travel(place: Path) -> None:
    (place / "mine_file.py").touch()
    (place / "mine_package").mkdir()
    (place / "mine_package" / "__init__.py").touch()
    (place / "mine_plain").mkdir()
    (place / "mine_plain" / "inner.py").touch()
    with zipfile.ZipFile(place / "a.zip", "w") as made:
        made.writestr("mine_zipped.py", "")
    sys.path.insert(0, str(place / "a.zip"))
    assert modules.place_of("mine_file") == str(place / "mine_file.py")
    assert modules.place_of("mine_package") == str(place / "mine_package")
    assert modules.place_of("mine_plain") == str(place / "mine_plain")
    assert modules.place_of("mine_zipped") == str(place / "a.zip")


@pytest.mark.parametrize(
    "name",
    ["sparkray", "__main__", "json", "_json", "sys", "pytest", "msgspec", "no_such_xy"],
)
def test_what_is_installed_or_nowhere_does_not(name: str) -> None:
    assert modules.place_of(name) == ""


def test_site_packages_of_any_environment_are_installed(place: Path) -> None:
    elsewhere = place / "lib" / "python3.11" / "site-packages"
    elsewhere.mkdir(parents=True)
    (elsewhere / "mine_elsewhere.py").touch()
    sys.path.insert(0, str(elsewhere))
    importlib.invalidate_caches()
    assert modules.place_of("mine_elsewhere") == ""


def test_compiled_modules_do_not_travel_alone(place: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (place / f"mine_compiled{suffix}").touch()
    assert modules.place_of("mine_compiled") == ""


def test_spark_tasks_get_the_drivers_own_path_without_its_installation(
    place: Path,
) -> None:
    own = modules.own_path()
    assert str(place) in own
    assert not [path for path in own if path.endswith("site-packages")]
    assert importlib.__file__ not in [f"{path}/importlib/__init__.py" for path in own]


def test_a_directory_that_is_called_as_an_installed_package_is_no_module(
    place: Path,
) -> None:
    (place / "msgspec").mkdir()
    assert modules.place_of("msgspec") == ""


def test_a_file_counts_from_the_moment_when_it_is_there(place: Path) -> None:
    for number in range(20):
        assert modules.place_of(f"mine_{number}") == ""
        (place / f"mine_{number}.py").touch()
        assert modules.place_of(f"mine_{number}") == str(place / f"mine_{number}.py")
