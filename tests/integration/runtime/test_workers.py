"""Workers: their environment, output, imports and forks; how many there are."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ObjectLostError
from tests.support import driver_environment, run_driver, until

pytestmark = pytest.mark.usefixtures("shared")


def test_variables_of_an_environment_are_there_before_any_import() -> None:
    @sparkray.remote(
        runtime_env={"env_vars": {"SR_TEST_A": "1", "OMP_NUM_THREADS": "3"}}
    )
    def seen() -> tuple[Any, Any]:
        return os.environ.get("SR_TEST_A"), os.environ.get("OMP_NUM_THREADS")

    @sparkray.remote
    def outside() -> Any:
        return os.environ.get("SR_TEST_A")

    assert sparkray.get(seen.remote()) == ("1", "3")
    assert sparkray.get(outside.remote()) is None


# --- output ---


def driver_with_output(code: str, **options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=driver_environment(**options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


TEN_LINES = """
import sys, time
import sparkray
sparkray.init(num_cpus=2, log_to_driver={shown})

@sparkray.remote(name="teller")
def tell(i):
    print("number", i)
    print("error", i, file=sys.stderr)

sparkray.get([tell.remote(i) for i in range(10)])
print("driver waits", flush=True)
time.sleep(30)
"""


def read_until(
    process: subprocess.Popen[bytes], enough: Any, timeout_s: float
) -> list[str]:
    """Return the lines printed until ``enough(lines)``, or in ``timeout_s``."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    text = b""

    def more() -> bool:
        nonlocal text
        text += process.stdout.read() or b""  # type: ignore[union-attr]
        return bool(enough(text.decode().splitlines()))

    with contextlib.suppress(AssertionError):
        until(more, timeout_s)
    return text.decode().splitlines()


def test_what_tasks_print_reaches_the_driver_without_another_call() -> None:
    with driver_with_output(TEN_LINES.format(shown=True)) as process:
        begun = read_until(process, lambda lines: "driver waits" in lines, 30)
        lines = begun + read_until(
            process, lambda lines: sum("teller" in x for x in begun + lines) >= 20, 5
        )
        process.kill()
    told = [line for line in lines if line.startswith("(teller pid=")]
    host = os.uname().nodename
    assert sorted(line.partition(") ")[2] for line in told) == sorted(
        f"{kind} {i}" for kind in ("number", "error") for i in range(10)
    )
    assert all(f", {host}) " in line for line in told)
    assert not any("\x01" in line for line in lines)


def test_a_driver_that_wants_no_output_gets_none() -> None:
    with driver_with_output(TEN_LINES.format(shown=False)) as process:
        lines = read_until(process, lambda lines: "driver waits" in lines, 30)
        assert "driver waits" in lines
        lines += read_until(process, lambda lines: lines, 2)
        process.kill()
    assert not any("number" in line or "error" in line for line in lines), lines


def test_the_last_words_of_a_worker_are_not_lost() -> None:
    code = """
import os, sys
import sparkray
sparkray.init(num_cpus=1)

@sparkray.remote(max_retries=0)
def last():
    print("famous last words", flush=True)
    sys.stdout.write("without an end of line")
    sys.stdout.flush()
    os._exit(3)

try:
    sparkray.get(last.remote())
except sparkray.exceptions.WorkerCrashedError as error:
    print("ERROR", str(error).replace("\\n", "|"))
import time
time.sleep(2)
"""
    run = run_driver(code)
    shown = [line for line in run.stdout.splitlines() if line.startswith("(last")]
    assert [line.partition(") ")[2] for line in shown] == [
        "famous last words",
        "without an end of line",
    ], run.stdout
    (error,) = [line for line in run.stdout.splitlines() if line.startswith("ERROR")]
    assert (
        "process " in error
        and "exited with code 3" in error
        and "famous last words" in error
    )


# --- imports ---


def test_modules_beside_the_driver_script_import_in_tasks(tmp_path: Path) -> None:
    (tmp_path / "beside_me.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "package_here").mkdir()
    (tmp_path / "package_here" / "__init__.py").write_text("")
    (tmp_path / "package_here" / "part.py").write_text("class Kind(Exception): ...\n")
    script = tmp_path / "driver.py"
    script.write_text(
        """
import sparkray
from package_here.part import Kind

@sparkray.remote
def late():
    import beside_me
    return beside_me.answer()

@sparkray.remote
def raises():
    raise Kind("known on both sides")

sparkray.init(num_cpus=1)
print(sparkray.get(late.remote()))
try:
    sparkray.get(raises.remote())
except Kind as error:
    print(type(error.cause) is Kind)
"""
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        cwd="/",
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.stdout.split() == ["42", "True"], run.stderr


# --- forks ---


def test_a_task_may_use_a_pool_of_forks() -> None:
    @sparkray.remote
    def pooled() -> list[int]:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2])

    assert sparkray.get([pooled.remote() for _ in range(3)], timeout=20) == [[1, 2]] * 3


def test_a_fork_of_a_worker_works_and_says_that_refs_did_not_come_along() -> None:
    @sparkray.remote
    def double(value: int) -> int:
        return 2 * value

    def in_child(ref: Any) -> str:
        own = sparkray.get(sparkray.put(20))
        doubled = sparkray.get(double.remote(own + 1))
        try:
            sparkray.get(ref)
        except ObjectLostError:
            return f"{doubled} lost"
        return f"{doubled} known"

    @sparkray.remote
    def forks(box: list[Any]) -> tuple[str, int]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, in_child(box[0]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            answer = answers.read()
        os.waitpid(pid, 0)
        return answer, sparkray.get(double.remote(sparkray.get(box[0])))

    ref = sparkray.put(4)
    assert sparkray.get(forks.remote([ref]), timeout=30) == ("42 lost", 8)
    assert sparkray.get(double.remote(1)) == 2


def test_a_pool_of_forks_in_a_driver_can_use_sparkray() -> None:
    code = """
import multiprocessing, sparkray
sparkray.init(num_cpus=2)

@sparkray.remote
def double(x):
    return 2 * x

def work(x):
    return sparkray.get(double.remote(x), timeout=30)

with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(work, range(6)))
print(sparkray.get(double.remote(21), timeout=30))
"""
    run = run_driver(code)
    assert run.stdout.splitlines() == ["[0, 2, 4, 6, 8, 10]", "42"], run.stderr


# --- how many ---


def test_idle_workers_above_the_cpus_end_and_a_few_stay() -> None:
    code = """
import os, time
import sparkray
sparkray.init(num_cpus=2)

@sparkray.remote(num_cpus=0)
def pid(seconds):
    time.sleep(seconds)
    return os.getpid()

pids = set(sparkray.get([pid.remote(0.5) for _ in range(8)]))
alive = lambda: sum(os.path.exists(f"/proc/{p}") for p in pids)
deadline = time.monotonic() + 15
while alive() > 2 and time.monotonic() < deadline:
    time.sleep(0.1)
time.sleep(2.5)
print(len(pids) > 2, alive())
print(sparkray.get(pid.remote(0)) in pids)
"""
    run = run_driver(code, SPARKRAY_WORKER_IDLE_S="1")
    assert run.stdout.split() == ["True", "2", "True"], run.stderr


def test_the_cap_on_workers_holds_and_all_work_is_done() -> None:
    code = """
import os
import sparkray
sparkray.init(num_cpus=2)

@sparkray.remote(num_cpus=0)
def pid(i):
    return os.getpid()

print(len(set(sparkray.get([pid.remote(i) for i in range(300)], timeout=40))) <= 3)
"""
    run = run_driver(code, SPARKRAY_MAX_WORKERS="3")
    assert run.stdout.split() == ["True"], run.stderr
