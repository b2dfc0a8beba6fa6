"""What a driver that fails shows to its user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ROOT, run_driver

IMPOSSIBLE = """
import sparkray
sparkray.init(num_cpus=1)

@sparkray.remote
def f():
    pass

@sparkray.remote
class Actor:
    def ping(self):
        pass

tasks = [f.options(num_cpus=64).remote() for _ in range(3)]
actor = Actor.options(resources={"moon": 1}).remote()
for ref in [*tasks, actor.ping.remote()]:
    try:
        sparkray.get(ref)
    except sparkray.exceptions.SparkrayError as error:
        print(type(error).__name__)
"""


def test_a_request_that_no_node_can_satisfy_is_told_of_while_it_waits() -> None:
    run = run_driver(IMPOSSIBLE, SPARKRAY_INFEASIBLE_TIMEOUT_S="6.5")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 4
    told = [line for line in run.stderr.splitlines() if "a request for" in line]
    assert len(told) == 2 and all(line.startswith("sparkray: ") for line in told)
    for wanted in ("{CPU: 64}", "moon: 1}"):
        (line,) = [line for line in told if wanted in line]
        assert "the largest has {CPU: 1" in line and "it fails in" in line


FAILS = """
import sparkray
sparkray.init(num_cpus=2)

@sparkray.remote
def inner(x):
    return 1 / x

@sparkray.remote
def outer(x):
    return sparkray.get(inner.remote(x))

sparkray.get(outer.remote(0))
"""


def script(folder: Path, text: str = FAILS) -> str:
    """Return a driver that runs ``text`` as a script of its own."""
    file = folder / "script.py"
    file.write_text(text)
    return f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"


def frames_of_ours(said: str) -> list[str]:
    return [line for line in said.splitlines() if f'File "{ROOT}/sparkray' in line]


def test_a_traceback_shows_the_users_frames_only(tmp_path: Path) -> None:
    said = run_driver(script(tmp_path)).stderr
    for line in ("return 1 / x", "return sparkray.get(inner.remote(x))"):
        assert f"    {line}\n" in said
    assert "    sparkray.get(outer.remote(0))\n" in said
    (frame,) = frames_of_ours(said)
    assert "in get" in frame  # Python shows where it was raised
    assert said.count("direct cause") == 1


def test_all_frames_are_shown_to_who_asks_for_them(tmp_path: Path) -> None:
    run = run_driver(script(tmp_path), SPARKRAY_FULL_TRACEBACKS="1")
    assert len(frames_of_ours(run.stderr)) > 6


CELLS = """
import linecache, sparkray

def run_cell(name, text):
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), globals())

HELPER = '''
import sparkray

def helper(x):
    limit = 10
    return limit / x  # in a helper's cell
'''
TASKS = '''# a comment

@sparkray.remote
def task(x):
    inner = lambda: helper(x)  # in a lambda
    return inner()  # in the task

@sparkray.remote
class Actor:
    def method(self):
        return helper(0)  # in the method
'''
sparkray.init(num_cpus=1)
run_cell(NAME + "1.py", HELPER)
run_cell(NAME + "2.py", TASKS)
for ref in (task.remote(0), Actor.remote().method.remote()):
    try:
        sparkray.get(ref)
    except ZeroDivisionError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["/tmp/ipykernel_1/", "<ipython-input-1-"])
def test_lines_of_notebook_cells_are_shown(name: str, tmp_path: Path) -> None:
    run = run_driver(script(tmp_path, f"NAME = {name!r}\n" + CELLS))
    for place in ("a helper's cell", "a lambda", "the task", "the method"):
        assert f"  # in {place}\n" in run.stdout, run.stdout + run.stderr
    assert "a comment" not in run.stdout


def test_a_script_that_is_not_on_the_workers_host_has_lines(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    known = f"import linecache; linecache.getlines({str(file)!r}); "
    driver = script(tmp_path, "import os; os.remove(__file__)\n" + FAILS)
    assert "    return 1 / x\n" in run_driver(known + driver).stderr


INTERRUPTED = """
import os, signal, sparkray, time
sparkray.init(num_cpus=1)

@sparkray.remote
def task(driver):
    os.kill(driver, signal.SIGINT)
    time.sleep(60)

sparkray.get(task.remote(os.getpid()))
"""


def test_ctrl_c_in_get_shows_where_the_program_was(tmp_path: Path) -> None:
    said = run_driver(script(tmp_path, INTERRUPTED)).stderr
    assert "KeyboardInterrupt" in said and "sparkray.get(task" in said
    assert len(frames_of_ours(said)) == 1


CRASHES = """
import ctypes, os, sparkray, sys
sparkray.init(num_cpus=1)

@sparkray.remote(max_retries=0)
def segfault():
    ctypes.string_at(0)  # the line that crashed

@sparkray.remote(max_retries=0)
def leave():
    print("famous last words", file=sys.stderr, flush=True)
    os._exit(7)

@sparkray.remote
class Actor:
    def segfault(self):
        ctypes.string_at(0)

for ref in (segfault.remote(), leave.remote(), Actor.remote().segfault.remote()):
    try:
        sparkray.get(ref)
    except sparkray.exceptions.ClusterError as error:
        path = re.search(r"its output is in (/.*err)", str(error))[1]
        pid = re.search(r"process (\\d+) on", str(error))[1]
        assert f"worker-{pid}-" in path, path
        print(type(error).__name__, error)
        print("file:", open(path).read())
"""


def test_a_crash_says_where_it_was_and_names_the_file(tmp_path: Path) -> None:
    run = run_driver(script(tmp_path, "import re\n" + CRASHES))
    assert run.returncode == 0, run.stderr
    fault, left, actor = run.stdout.split("file:")[:3]
    assert "SIGSEGV" in fault and "Segmentation fault" in fault
    assert "script.py" in fault and "in segfault" in fault
    assert "exited with code 7" in left and "famous last words" in left
    assert "SIGSEGV" in actor and "in segfault" in actor


FORKED = """
import os, sparkray
sparkray.init(num_cpus=2)

def in_a_child(refs):
    pid = os.fork()
    if pid == 0:
        for use in (sparkray.get, sparkray.wait):
            try:
                use(refs)
            except sparkray.exceptions.ObjectLostError as error:
                print("child", error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print("parent", pid, os.getpid(), flush=True)

in_a_child([sparkray.put(1)])

@sparkray.remote
def task(refs):
    in_a_child(refs)

sparkray.get(task.remote([sparkray.put(2)]))
sparkray.shutdown()
"""


def test_a_ref_in_a_forked_child_is_refused_with_what_to_do() -> None:
    run = run_driver(FORKED)
    said = [line for line in run.stdout.splitlines() if " is lost: " in line]
    parents = [line.split()[-1] for line in run.stdout.splitlines() if "parent" in line]
    assert len(said) == 4 and len(parents) == 2, run.stdout + run.stderr
    for line, parent in zip(said, [parents[0]] * 2 + [parents[1]] * 2, strict=True):
        assert f"forked from process {parent}" in line and "before the fork" in line
