"""``working_dir`` and ``py_modules``: shipped once, found by whoever needs them."""

import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.protocol import control
from sparkray.protocol.environments import NAMESPACE
from sparkray.runtime import core


def _project(root: Path, word: str, module: str = "env_module") -> Path:
    (root / "sub").mkdir(parents=True)
    (root / f"{module}.py").write_text(f"WORD = {word!r}\n")
    (root / "sub" / "data.txt").write_text(word)
    return root


def _package(root: Path, name: str, value: str) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").write_text("from .inner import VALUE\n")
    (root / name / "inner.py").write_text(f"VALUE = {value!r}\n")
    return root / name


def _zip(source: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as made:
        for path in source.rglob("*"):
            made.write(path, path.relative_to(source))
    return target


@sparkray.remote
def look(module: str) -> tuple[str, str, str]:
    import importlib

    found = importlib.import_module(module)
    with open("sub/data.txt") as file:
        return found.WORD, file.read(), os.getcwd()


@sparkray.remote
def value_of(module: str) -> Any:
    import importlib

    return importlib.import_module(module).VALUE


def _packages() -> list[bytes]:
    request = control.KVKeys(NAMESPACE, b"")
    keys = core.current().head_call("KVKeys", request).keys
    return [key for key in keys if b"/" not in key and b"@" not in key]


def test_a_working_directory_is_where_tasks_are_and_import_from(
    shared: ModuleType, tmp_path: Path
) -> None:
    env = {"working_dir": str(_project(tmp_path / "w", "dir"))}
    word, data, where = shared.get(look.options(runtime_env=env).remote("env_module"))
    assert (word, data) == ("dir", "dir")
    assert where != str(tmp_path / "w") and where != os.getcwd()


def test_a_zip_is_as_good_as_a_directory(shared: ModuleType, tmp_path: Path) -> None:
    source = _project(tmp_path / "w", "zip")
    env = {"working_dir": _zip(source, tmp_path / "w.zip")}
    ref = look.options(runtime_env=env).remote("env_module")
    assert shared.get(ref)[:2] == ("zip", "zip")


def test_two_directories_at_a_time_do_not_mix(
    shared: ModuleType, tmp_path: Path
) -> None:
    tasks = [
        look.options(runtime_env={"working_dir": _project(tmp_path / name, name)})
        for name in "xy"
    ]
    refs = [task.remote("env_module") for task in tasks * 4]
    assert [word for word, _, _ in shared.get(refs)] == ["x", "y"] * 4


def test_equal_content_is_shipped_and_unpacked_once(
    shared: ModuleType, tmp_path: Path
) -> None:
    before = len(_packages())
    tasks = [
        look.options(runtime_env={"working_dir": _project(tmp_path / name, "same")})
        for name in "xyz"
    ]
    places = {
        where for _, _, where in shared.get([t.remote("env_module") for t in tasks])
    }
    assert len(places) == 1 and len(_packages()) == before + 1


def test_a_changed_file_is_a_new_environment(
    shared: ModuleType, tmp_path: Path
) -> None:
    root = _project(tmp_path / "w", "old")
    env = {"working_dir": root}
    assert shared.get(look.options(runtime_env=env).remote("env_module"))[0] == "old"
    (root / "env_module.py").write_text("WORD = 'newer'\n")
    assert shared.get(look.options(runtime_env=env).remote("env_module"))[0] == "newer"


def test_modules_come_as_packages_directories_zips_wheels_and_files(
    shared: ModuleType, tmp_path: Path
) -> None:
    package = _package(tmp_path / "a", "env_package", "package")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "env_plain.py").write_text("VALUE = 'plain'\n")
    zipped = _zip(
        _package(tmp_path / "b", "env_zipped", "zip").parent, tmp_path / "b.zip"
    )
    wheel = tmp_path / "env_wheel-1-py3-none-any.whl"
    _zip(_package(tmp_path / "c", "env_wheel", "wheel").parent, wheel)
    (tmp_path / "env_single.py").write_text("VALUE = 'file'\n")
    modules = [package, tmp_path / "plain", zipped, wheel, tmp_path / "env_single.py"]
    task = value_of.options(runtime_env={"py_modules": modules})
    names = ["env_package", "env_plain", "env_zipped", "env_wheel", "env_single"]
    values = shared.get([task.remote(name) for name in names])
    assert values == ["package", "plain", "zip", "wheel", "file"]
    with pytest.raises(ModuleNotFoundError):
        shared.get(value_of.remote("env_package"))


def test_an_actor_lives_in_its_environment(shared: ModuleType, tmp_path: Path) -> None:
    @sparkray.remote(runtime_env={"working_dir": _project(tmp_path / "w", "actor")})
    class Reader:
        def __init__(self) -> None:
            import env_module  # type: ignore[import-not-found]

            self.word = env_module.WORD

        def read(self) -> tuple[str, str]:
            return self.word, Path("sub/data.txt").read_text()

    assert shared.get(Reader.remote().read.remote()) == ("actor", "actor")


def test_children_inherit_and_their_own_words_win(
    shared: ModuleType, tmp_path: Path
) -> None:
    @sparkray.remote
    def child() -> tuple[str, str | None, str | None]:
        word = Path("sub/data.txt").read_text()
        return word, os.environ.get("ENV_A"), os.environ.get("ENV_B")

    @sparkray.remote
    def parent() -> Any:
        inner = child.options(runtime_env={"env_vars": {"ENV_B": "child"}})
        return sparkray.get([child.remote(), inner.remote()])

    env = {
        "working_dir": _project(tmp_path / "w", "mine"),
        "env_vars": {"ENV_A": "a", "ENV_B": "parent"},
    }
    seen = shared.get(parent.options(runtime_env=env).remote())
    assert seen == [("mine", "a", "parent"), ("mine", "a", "child")]


def test_a_function_takes_its_environment_along_when_it_is_sent(
    shared: ModuleType, tmp_path: Path
) -> None:
    root = _project(tmp_path / "w", "sent")
    function = look.options(runtime_env={"working_dir": root})

    @sparkray.remote
    def call(function: Any) -> Any:
        os.rename(root, root.with_name("gone"))  # as on another host
        return sparkray.get(function.remote("env_module"))

    assert shared.get(call.remote([function][0]))[0] == "sent"


def test_programs_that_tasks_start_find_the_modules(
    shared: ModuleType, tmp_path: Path
) -> None:
    @sparkray.remote(
        runtime_env={"py_modules": [_package(tmp_path, "env_sub", "subprocess")]}
    )
    def run() -> str:
        import subprocess

        code = "import env_sub; print(env_sub.VALUE)"
        return subprocess.check_output([sys.executable, "-c", code], text=True).strip()

    assert shared.get(run.remote()) == "subprocess"


def test_modules_that_import_in_a_circle_say_so(
    shared: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "env_one.py").write_text("from env_two import B\nA = 1\n")
    (tmp_path / "env_two.py").write_text("from env_one import A\nB = 1\n")
    task = value_of.options(runtime_env={"working_dir": tmp_path})
    with pytest.raises(ImportError, match="circular import"):
        shared.get(task.remote("env_one"))


def test_a_damaged_archive_fails_at_get_and_good_tasks_go_on(
    shared: ModuleType, tmp_path: Path
) -> None:
    whole = _zip(_project(tmp_path / "whole", "x" * 100), tmp_path / "bad.zip")
    data = bytearray(whole.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        name = archive.getinfo("env_module.py")
    data[name.header_offset + 30 + len(name.filename) + 3] ^= 1  # a byte of its content
    whole.write_bytes(data)
    task = value_of.options(runtime_env={"py_modules": [tmp_path / "bad.zip"]})
    refs = [task.remote("json") for _ in range(8)]
    for ref in refs:
        with pytest.raises(RuntimeEnvSetupError, match="archive"):
            shared.get(ref, timeout=30)

    @sparkray.remote(runtime_env={"working_dir": tmp_path / "bad.zip"})
    class Actor:
        def method(self) -> None: ...

    with pytest.raises(RuntimeEnvSetupError, match="archive"):
        shared.get(Actor.remote().method.remote(), timeout=30)
    assert (
        shared.get(
            look.options(
                runtime_env={"working_dir": _project(tmp_path / "w", "good")}
            ).remote("env_module")
        )[0]
        == "good"
    )


def test_a_package_that_is_missing_fails_at_get(shared: ModuleType) -> None:
    env = {"working_dir": f"package:{'0' * 64}.zip"}
    with pytest.raises(RuntimeEnvSetupError, match="not in the head"):
        shared.get(look.options(runtime_env=env).remote("env_module"), timeout=30)


def test_bad_input_is_refused_at_the_call(shared: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "large.bin").touch()
    os.truncate(tmp_path / "large.bin", 1 << 30)
    with pytest.raises(ValueError, match=r"large\.bin"):
        look.options(runtime_env={"working_dir": tmp_path}).remote("env_module")
    with pytest.raises(ValueError, match="does not exist"):
        look.options(runtime_env={"py_modules": ["/no/such"]}).remote("env_module")
    (tmp_path / "bad.zip").write_bytes(b"no zip at all")
    with pytest.raises(ValueError, match=r"bad\.zip is no good archive"):
        look.options(runtime_env={"working_dir": tmp_path / "bad.zip"}).remote("json")
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as made:
        made.writestr("../outside.py", "")
    with pytest.raises(ValueError, match=r"'\.\./outside\.py' lies outside"):
        look.options(runtime_env={"py_modules": [tmp_path / "out.zip"]}).remote("json")
