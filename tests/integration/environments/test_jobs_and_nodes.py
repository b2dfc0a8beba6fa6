"""Environments of whole jobs, and on other nodes; what is left of them."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.protocol import control
from sparkray.protocol.environments import NAMESPACE
from sparkray.runtime import core
from tests.support import run_driver, until


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


@sparkray.remote
def look(module: str) -> tuple[str, str, str]:
    import importlib

    found = importlib.import_module(module)
    with open("sub/data.txt") as file:
        return found.WORD, file.read(), os.getcwd()


def test_a_directory_for_the_whole_job(tmp_path: Path) -> None:
    root = _project(tmp_path / "w", "job")
    (root / "skip.bin").touch()
    code = f"""
import os, sparkray
env = {{"working_dir": {str(root)!r}, "excludes": ["*.bin"]}}
env["env_vars"] = {{"V": "job"}}
sparkray.init(num_cpus=2, runtime_env=env)

@sparkray.remote
def f():
    import env_module
    return env_module.WORD, sorted(os.listdir()), os.environ["V"]

@sparkray.remote
def g():
    return sparkray.get(f.options(runtime_env={{"env_vars": {{"V": "task"}}}}).remote())

print(sparkray.get([f.remote(), g.remote()]))
"""
    done = run_driver(code)
    names = ["env_module.py", "sub"]
    first, second = ("job", names, "job"), ("job", names, "task")
    assert done.stdout.strip() == str([first, second]), done.stderr


def test_a_directory_that_is_too_large_for_the_job_starts_nothing(
    fresh: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "large.bin").touch()
    os.truncate(tmp_path / "large.bin", 1 << 30)
    with pytest.raises(ValueError, match=r"large\.bin"):
        fresh.init(runtime_env={"working_dir": str(tmp_path)})
    assert not fresh.is_initialized()


def test_other_nodes_get_the_files_through_the_head(
    two_nodes: Any, tmp_path: Path
) -> None:
    env = {
        "working_dir": _project(tmp_path / "w", "far"),
        "py_modules": [_package(tmp_path, "env_far", "far")],
    }
    (tmp_path / "w" / "large.bin").write_bytes(os.urandom(9 << 20))  # several pieces
    task = look.options(runtime_env=env, resources={"second": 1})
    word, data, where = sparkray.get(task.remote("env_module"), timeout=40)
    assert (word, data) == ("far", "far")
    assert os.path.getsize(f"{where}/large.bin") == 9 << 20
    here = sparkray.get(look.options(runtime_env=env).remote("env_module"))[2]
    assert isinstance(here, str)


def test_nothing_of_an_environment_is_left(
    fresh: ModuleType, tmp_path: Path, cluster_root: Path
) -> None:
    def unpacked() -> list[Path]:
        return list(cluster_root.rglob("env_module.py"))

    fresh.init(num_cpus=1, runtime_env={"working_dir": str(_project(tmp_path, "x"))})
    fresh.get(look.remote("env_module"))
    assert unpacked()
    fresh.shutdown()
    assert not unpacked()


def _stored() -> list[bytes]:
    """Return the keys of all packages that are in the head, pieces and uses too."""
    keys: list[bytes] = (
        core.current().head_call("KVKeys", control.KVKeys(NAMESPACE, b"")).keys
    )
    return keys


USER = """
import sparkray
sparkray.init(address={address!r}, namespace="space")

@sparkray.remote(runtime_env={{"working_dir": {root!r}}})
class Reader:
    def read(self): return open("sub/data.txt").read()

kept = Reader.options(name="kept", lifetime="detached", max_restarts=1).remote()
print(sparkray.get([kept.read.remote(), Reader.remote().read.remote()]))
"""


def test_packages_leave_the_head_with_the_last_job_that_uses_them(
    start_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = start_cluster(num_cpus=2)
    root = _project(tmp_path / "w", "kept")
    done = run_driver(USER.format(address=cluster.address, root=str(root)))
    assert done.stdout.strip() == "['kept', 'kept']", done.stderr
    sparkray.init(address=cluster.address, namespace="space")
    until(lambda: sum(b"@" in key for key in _stored()) == 1)
    second = cluster.add_node(num_cpus=1, resources={"second": 1})
    cluster.wait_for_nodes()
    task = look.options(runtime_env={"working_dir": root}, resources={"second": 1})
    assert sparkray.get(task.remote("env_module"), timeout=40)[1] == "kept"
    sparkray.kill(sparkray.get_actor("kept"))
    until(lambda: not any(job.alive for job in _jobs() if not job.driver_node))
    assert _stored(), "this job uses it as well"
    sparkray.shutdown()
    sparkray.init(address=cluster.address)
    until(lambda: _stored() == [])
    cluster.remove_node(second)


def _jobs() -> list[control.JobInfo]:
    jobs: list[control.JobInfo] = (
        core.current().head_call("ListJobs", control.ListJobs()).jobs
    )
    return jobs
