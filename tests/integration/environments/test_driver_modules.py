"""Modules that only the driver can import: tasks get them without any setting.

The driver's import path at `init` travels to all workers, so what is to be seen as only
the driver's joins it later, as Spark's `addPyFile` does it.
"""

import importlib
import itertools
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray

_numbers = itertools.count()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that only the driver looks in, used after `init`."""
    directory = tmp_path / "beside"
    directory.mkdir()
    known = set(sys.modules)
    yield directory
    for name in set(sys.modules) - known:
        if name.startswith("only_here"):
            del sys.modules[name]


@pytest.fixture
def name() -> str:
    return f"only_here_{os.getpid()}_{next(_numbers)}"


@sparkray.remote
def value_of(name: str) -> Any:
    return importlib.import_module(name).VALUE


def _begin(
    cluster: ModuleType, place: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any
) -> None:
    cluster.init(num_cpus=2, **arguments)
    monkeypatch.syspath_prepend(str(place))


def test_a_module_a_package_and_an_archive_are_found_when_they_are_imported(
    fresh: ModuleType, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(fresh, place, monkeypatch)
    (place / f"{name}_a.py").write_text(f"from {name}_b.inner import VALUE\n")
    (place / f"{name}_b").mkdir()
    (place / f"{name}_b" / "__init__.py").touch()
    (place / f"{name}_b" / "inner.py").write_text(
        "import os\n"
        "VALUE = open(os.path.join(os.path.dirname(__file__), 'data.txt')).read()\n"
    )
    (place / f"{name}_b" / "data.txt").write_text("data")
    (place / f"{name}_plain" / "sub").mkdir(parents=True)
    (place / f"{name}_plain" / "sub" / "module.py").write_text("VALUE = 'plain'\n")
    archive = place / "archive.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(f"{name}_c/__init__.py", f"from {name}_d import VALUE\n")
        made.writestr(f"{name}_d.py", "VALUE = 'zipped'\n")
    monkeypatch.syspath_prepend(str(archive))
    wanted = [f"{name}_a", f"{name}_plain.sub.module", f"{name}_c"]
    found = fresh.get([value_of.remote(module) for module in wanted])
    assert found == ["data", "plain", "zipped"]


def test_what_the_driver_has_not_is_missing_as_ever_until_it_has_it(
    fresh: ModuleType, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(fresh, place, monkeypatch)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        fresh.get(value_of.remote(name))
    (place / f"{name}.py").write_text("VALUE = 'late'\n")
    assert fresh.get(value_of.remote(name)) == "late"


def test_a_function_of_such_a_module_is_called_from_a_nested_task(
    fresh: ModuleType, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(fresh, place, monkeypatch)
    (place / f"{name}.py").write_text("def double(x):\n    return 2 * x\n")
    module = importlib.import_module(name)

    @fresh.remote
    def outer(x: int) -> Any:
        return fresh.get(fresh.remote(module.double).remote(x))

    assert fresh.get(outer.remote(21)) == 42


def test_an_actor_and_a_child_that_it_forks_do_not_wait_for_what_is_nowhere(
    fresh: ModuleType, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(fresh, place, monkeypatch)
    (place / f"{name}.py").write_text("VALUE = 'actor'\n")

    @fresh.remote
    class Importer:
        def look(self, name: str) -> Any:
            return importlib.import_module(name).VALUE

        def look_in_a_child(self) -> int:
            child = os.fork()
            if child == 0:
                try:
                    importlib.import_module("only_here_nowhere")
                except ModuleNotFoundError:
                    os._exit(7)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    actor = Importer.remote()
    assert fresh.get(actor.look.remote(name)) == "actor"
    assert fresh.get(actor.look_in_a_child.remote()) == 7


def test_what_is_too_large_is_not_shipped_and_the_driver_is_told(
    fresh: ModuleType,
    place: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _begin(fresh, place, monkeypatch)
    (place / name).mkdir()
    (place / name / "__init__.py").write_text("VALUE = 1\n")
    (place / name / "large.bin").touch()
    os.truncate(place / name / "large.bin", 1 << 30)
    monkeypatch.setattr(sys.modules["logging"].getLogger("sparkray"), "propagate", True)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            fresh.get(value_of.remote(name))
    told = [message for message in caplog.messages if name in message]
    assert len(told) == 1
    assert "large.bin (1024.0 MiB)" in told[0] and "py_modules" in told[0]


def test_other_nodes_ask_the_driver_through_its_node(
    two_nodes: Any, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / f"{name}.py").write_text("VALUE = 'far'\n")
    monkeypatch.syspath_prepend(str(place))
    far = value_of.options(resources={"second": 1})
    assert sparkray.get(far.remote(name)) == "far"
