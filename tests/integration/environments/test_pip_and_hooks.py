"""``pip`` and ``worker_process_setup_hook``, with packages made here: no registry."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import RuntimeEnvSetupError
from tests.support import Tally, run_driver

#: A build backend that needs nothing: it zips the one module of its directory.
_BACKEND = """
import glob, os, zipfile
def build_wheel(directory, settings=None, metadata=None):
    {failure}
    name = "{name}-{version}-py3-none-any.whl"
    info = "{name}-{version}.dist-info/"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.write("{name}.py")
        wheel.writestr(info + "METADATA",
            "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel.writestr(info + "WHEEL",
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def _source(root: Path, name: str, version: str = "1.0", failure: str = "pass") -> str:
    root.mkdir(parents=True)
    (root / "backend.py").write_text(
        _BACKEND.format(name=name, version=version, failure=failure)
    )
    (root / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\n"
        "backend-path = ['.']\n"
    )
    (root / f"{name}.py").write_text(f"VALUE = {version!r}\n")
    return str(root)


@sparkray.remote
def value_of(module: str) -> tuple[Any, str, str]:
    import importlib

    return importlib.import_module(module).VALUE, sys.executable, sys.prefix


@sparkray.remote
def sum_of(a: int, b: int) -> int:
    return a + b


@pytest.fixture(scope="module")
def first_version(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return where version 1.0 of `env_pip` is: installed once for all tests."""
    return _source(tmp_path_factory.mktemp("pip") / "1.0", "env_pip")


def test_packages_are_installed_once_for_who_asks_for_them(
    shared: ModuleType, first_version: str
) -> None:
    task = value_of.options(runtime_env={"pip": [first_version]})
    answers = shared.get([task.remote("env_pip") for _ in range(6)], timeout=55)
    assert {answer[0] for answer in answers} == {"1.0"}
    assert len({answer[1] for answer in answers} - {sys.executable}) == 1
    with pytest.raises(ModuleNotFoundError):
        shared.get(value_of.remote("env_pip"))


def test_versions_side_by_side_and_what_the_cluster_has_is_still_there(
    shared: ModuleType, first_version: str, tmp_path: Path
) -> None:
    @sparkray.remote
    def look() -> tuple[Any, str]:
        import env_pip  # type: ignore[import-not-found]
        import msgspec

        return env_pip.VALUE, msgspec.__name__

    second = _source(tmp_path / "2.0", "env_pip", "2.0")
    refs = [
        look.options(runtime_env={"pip": [source]}).remote()
        for source in (first_version, second)
    ]
    assert shared.get(refs, timeout=55) == [("1.0", "msgspec"), ("2.0", "msgspec")]


def test_a_package_that_cannot_be_built_fails_at_get_with_pips_last_lines(
    shared: ModuleType, tmp_path: Path
) -> None:
    tally = tmp_path / "built"
    failure = f"open({str(tally)!r}, 'a').write('x'); raise OSError('no compiler')"
    broken = _source(tmp_path / "p", "env_bad", failure=failure)
    task = value_of.options(runtime_env={"pip": {"packages": [broken]}})
    with pytest.raises(RuntimeEnvSetupError, match="no compiler"):
        shared.get(task.remote("env_bad"), timeout=55)
    with pytest.raises(RuntimeEnvSetupError, match=r"(?s)no compiler.*tried again"):
        shared.get(task.remote("env_bad"), timeout=55)
    assert tally.read_text() == "x", "one that has just failed is not tried at once"
    assert shared.get(sum_of.remote(1, 2)) == 3


def test_a_set_up_that_takes_too_long_is_given_up(
    shared: ModuleType, tmp_path: Path
) -> None:
    slow = _source(tmp_path / "p", "env_slow", failure="import time; time.sleep(300)")
    env = {"pip": [slow], "config": {"setup_timeout_seconds": 2}}
    task = sum_of.options(runtime_env=env)
    with pytest.raises(RuntimeEnvSetupError, match="more than 2 s"):
        shared.get(task.remote(1, 2), timeout=30)
    assert shared.get(sum_of.remote(1, 2)) == 3


def test_a_hook_runs_once_in_each_worker_before_its_first_task(
    shared: ModuleType, tmp_path: Path
) -> None:
    tally = Tally(tmp_path)

    def hook() -> None:
        os.environ["ENV_HOOK"] = "ran"
        tally.add(os.getpid())

    @sparkray.remote(runtime_env={"worker_process_setup_hook": hook})
    def look() -> tuple[str | None, int]:
        return os.environ.get("ENV_HOOK"), os.getpid()

    answers = shared.get([look.remote() for _ in range(12)])
    assert {answer[0] for answer in answers} == {"ran"}
    pids = tally.lines()
    assert len(pids) == len(set(pids)) >= len({answer[1] for answer in answers})


def test_a_hook_can_be_a_name_in_what_is_shipped(
    shared: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "env_hooks.py").write_text(
        "import os\ndef run():\n    os.environ['ENV_NAMED'] = 'yes'\n"
    )
    env = {"working_dir": tmp_path, "worker_process_setup_hook": "env_hooks.run"}

    @sparkray.remote(runtime_env=env)
    class Actor:
        def look(self) -> str | None:
            return os.environ.get("ENV_NAMED")

    assert shared.get(Actor.remote().look.remote()) == "yes"


def test_a_hook_that_fails_is_the_error_of_every_task(shared: ModuleType) -> None:
    def hook() -> None:
        raise ZeroDivisionError("in the hook")

    env = {"worker_process_setup_hook": hook}
    task = sum_of.options(runtime_env=env)
    for ref in [task.remote(1, 2) for _ in range(6)]:
        with pytest.raises(RuntimeEnvSetupError, match="in the hook"):
            shared.get(ref, timeout=30)

    @sparkray.remote(runtime_env={"worker_process_setup_hook": "no_such.module"})
    class Actor:
        def method(self) -> None: ...

    with pytest.raises(RuntimeEnvSetupError, match="no_such"):
        shared.get(Actor.remote().method.remote(), timeout=30)
    assert shared.get(sum_of.remote(1, 2)) == 3


def test_a_job_whose_packages_cannot_be_installed_says_so_at_get(
    tmp_path: Path,
) -> None:
    bad = _source(tmp_path / "p", "env_job", failure="raise OSError('no compiler')")
    code = f"""
import sparkray
sparkray.init(num_cpus=1, runtime_env={{"pip": [{bad!r}]}})
try:
    sparkray.get(sparkray.remote(abs).remote(-1))
except sparkray.exceptions.RuntimeEnvSetupError as error:
    print("no compiler" in str(error))
"""
    done = run_driver(code, timeout_s=58)
    assert done.stdout.strip() == "True", done.stderr
