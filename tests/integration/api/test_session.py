import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.launch import discovery
from sparkray.testing import Cluster

ROOT = Path(sparkray.__file__).parents[1]


@pytest.fixture(autouse=True)
def temp_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp dir of the test's own, empty again at its end; no session is left."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sr-", dir="/tmp") as name:
        monkeypatch.setenv("SPARKRAY_TEMP_DIR", name)
        monkeypatch.delenv("SPARKRAY_ADDRESS", raising=False)
        yield Path(name)
        sparkray.shutdown()
        until(lambda: not leftovers(Path(name)))


def leftovers(directory: Path) -> list[str]:
    """Return the session directories that are left, and segments of theirs."""
    names = [path.name for path in directory.iterdir() if path.is_dir()]
    segments = [p for n in names if (p := Path(f"/dev/shm/sparkray-{n}")).exists()]
    return [*names, *map(str, segments)]


def until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.02)


def run_driver(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )


@sparkray.remote
def add(a: int, b: int = 1) -> int:
    return a + b


def test_a_session_starts_ends_and_starts_again_without_a_trace(temp_dir: Path) -> None:
    for cpus in (1, 2):
        with sparkray.init(num_cpus=cpus, resources={"special": 3}) as context:
            assert sparkray.is_initialized()
            assert sparkray.cluster_resources()["CPU"] == cpus
            assert sparkray.cluster_resources()["special"] == 3
            assert context["address"] == context.address
            assert sparkray.get(add.remote(1), timeout=30) == 2
        assert not sparkray.is_initialized()
        until(lambda: not leftovers(temp_dir))
    sparkray.shutdown()


def test_a_session_whose_cluster_has_ended_gives_way_to_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster() as cluster:
        old = sparkray.init(address=cluster.address).address
        ref = add.remote(1)
        assert sparkray.get(ref, timeout=30) == 2
    until(lambda: not sparkray.is_initialized())
    with pytest.raises(SparkrayError, match=r"sparkray.init\(\)"):
        sparkray.get(add.remote(1), timeout=30)
    assert sparkray.init(address="local", num_cpus=1).address != old
    assert f"the cluster {old} has ended" in caplog.text
    assert sparkray.get(add.remote(1), timeout=30) == 2
    del ref


def test_the_first_use_starts_a_session_and_init_then_compares() -> None:
    assert sparkray.get(add.remote(1), timeout=30) == 2
    context = sparkray.init()
    assert sparkray.init(address=context.address) is context
    assert sparkray.init(address="local") is context
    with pytest.raises(RuntimeError, match="num_cpus=2"):
        sparkray.init(num_cpus=2)
    assert sparkray.init(num_cpus=2, ignore_reinit_error=True) is context


def test_equal_arguments_are_harmless() -> None:
    first = sparkray.init(num_cpus=1, namespace="here", resources={"a": 1})
    again = sparkray.init(num_cpus=1, namespace="here", resources={"a": 1})
    assert first is again and first.namespace == "here"


def test_a_wrong_argument_starts_nothing(temp_dir: Path) -> None:
    with pytest.raises(ValueError):
        sparkray.init(num_cpus=-1)
    with pytest.raises(TypeError):
        sparkray.init(runtime_env="x")
    assert not sparkray.is_initialized() and not leftovers(temp_dir)


def test_a_dead_address_is_an_error_and_starts_nothing(temp_dir: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1 "):
        sparkray.init(address="127.0.0.1:1")
    assert time.monotonic() - began < 30
    assert not sparkray.is_initialized() and not leftovers(temp_dir)


def test_the_context_shows_in_a_notebook_and_escapes_what_it_shows() -> None:
    context = sparkray.init(num_cpus=1, namespace="<b>")
    shown = context._repr_html_()
    assert context.address in shown and "&lt;b&gt;" in shown
    assert dict(context)["dashboard_url"] is None


def test_one_line_says_what_was_started(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sparkray"):
        context = sparkray.init(num_cpus=1)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "sparkray"]
    assert line.startswith(f"started cluster {context.address}")


def test_a_start_that_fails_says_why_and_leaves_nothing(
    temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKRAY_NODE_TIMEOUT_S", "soon")
    with pytest.raises(
        (sparkray.exceptions.ClusterError, ValueError), match="NODE_TIM"
    ):
        sparkray.init(num_cpus=1)
    monkeypatch.delenv("SPARKRAY_NODE_TIMEOUT_S")
    assert not sparkray.is_initialized() and not list(temp_dir.iterdir())


def test_a_module_beside_the_driver_does_not_break_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "types", "random", "signal"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    monkeypatch.chdir(tmp_path)
    sparkray.init(num_cpus=1)
    assert sparkray.cluster_resources()["CPU"] == 1


def test_a_driver_that_just_ends_takes_its_cluster_along(temp_dir: Path) -> None:
    run = run_driver("import sparkray; print(sparkray.init(num_cpus=1).session_dir)")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() and not leftovers(temp_dir)


@pytest.mark.faults
def test_a_killed_driver_takes_its_cluster_along(temp_dir: Path) -> None:
    code = "import sparkray, time; sparkray.init(num_cpus=1); print(flush=True)"
    driver = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    with driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        (node,) = discovery.nodes_on_this_host(temp_dir)
        driver.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{node.pid}").exists(), 30)
    until(lambda: not leftovers(temp_dir))


def test_a_forked_child_works_and_its_end_ends_nothing() -> None:
    run = run_driver(
        """
import os, sys, sparkray

@sparkray.remote
def add(x):
    return x + 1

sparkray.init(num_cpus=1, address="local")
pid = os.fork()
if pid == 0:
    sys.exit(sparkray.get(add.remote(2), timeout=30))
_, status = os.waitpid(pid, 0)
print(status >> 8, sparkray.get(add.remote(3), timeout=30))
"""
    )
    assert run.stdout.split() == ["3", "4"], run.stderr


@pytest.mark.faults
def test_a_forked_child_does_not_keep_a_dead_drivers_cluster(temp_dir: Path) -> None:
    code = """
import os, signal, time, sparkray
sparkray.init(num_cpus=1)
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
print(flush=True)
time.sleep(60)
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        driver.kill()
    try:
        until(lambda: not discovery.nodes_on_this_host(temp_dir), 30)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)


def test_a_private_cluster_is_not_joined_by_others(temp_dir: Path) -> None:
    mine = sparkray.init(num_cpus=1)
    run = run_driver("import sparkray; print(sparkray.init().address)")
    assert run.stdout.strip() not in ("", mine.address), run.stderr
    named = f"import sparkray; print(sparkray.init(address={mine.address!r}).address)"
    assert run_driver(named).stdout.strip() == mine.address


def test_init_in_a_task_changes_nothing() -> None:
    context = sparkray.init(num_cpus=1)

    @sparkray.remote
    def inner() -> tuple[str, bool, int]:
        inside = sparkray.init(num_cpus=7)
        sparkray.shutdown()
        alive = sparkray.is_initialized()
        return inside.address, alive, sparkray.get(sparkray.put(5))

    assert sparkray.get(inner.remote(), timeout=30) == (context.address, True, 5)


def test_the_jobs_environment_reaches_tasks_and_their_own_wins() -> None:
    sparkray.init(num_cpus=1, runtime_env={"env_vars": {"SR_A": "job", "SR_B": "job"}})

    @sparkray.remote
    def variables() -> tuple[str | None, str | None]:
        return os.environ.get("SR_A"), os.environ.get("SR_B")

    @sparkray.remote(runtime_env={"env_vars": {"SR_B": "parent"}})
    def parent() -> object:
        return sparkray.get(variables.remote())

    assert sparkray.get(variables.remote(), timeout=30) == ("job", "job")
    assert sparkray.get(parent.remote(), timeout=30) == ("job", "parent")
    own = variables.options(runtime_env={"env_vars": {"SR_A": "own"}})
    assert sparkray.get(own.remote(), timeout=30) == ("own", "job")


def test_what_the_last_task_prints_is_seen_before_the_program_ends() -> None:
    run = run_driver(
        "import sparkray\n"
        "sparkray.init(address='local', num_cpus=1)\n"
        "sparkray.get(sparkray.remote(print).remote('the last line'))\n"
    )
    assert "the last line" in run.stdout, run.stderr
