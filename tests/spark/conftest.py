"""Drivers as processes of their own, each with a folder that shows what it leaves.

A driver is a script that the test writes.  It runs with the environment that Spark's
executors inherit, its session directories in one short folder of the test, and what it
prints as lines of JSON comes back as results.

Starting Spark takes longest.  What needs no driver of its own runs in the `console`,
one driver with one Spark for all such tests.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

REPO = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")

#: What all tests here need.
NEEDS_SPARK = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark is not installed"),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs a Java runtime",
    ),
]

#: What every driver begins with.
HEADER = """\
import collections, json, logging, os, sys, time, warnings
warnings.simplefilter("ignore")
import pandas as pd
import sparkray
from pyspark.sql import SparkSession

def tell(**fields):
    print(json.dumps(fields), flush=True)

def start(master="local-cluster[2,1,1024]", **conf):
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "1",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(master).getOrCreate()

def executors():
    alive = [node for node in sparkray.nodes() if node["Alive"]]
    return [node for node in alive if "spark.executor" in node["Labels"]]

def action(spark, partitions):
    frame = spark.range(partitions, numPartitions=partitions)
    return frame.mapInArrow(lambda batches: batches, "id long").count()

def jobs(spark):
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())

def nested(x, pause_s=0.0):
    time.sleep(pause_s)
    return x * x, sparkray.get_runtime_context().get_node_id(), os.getpid()
"""


#: What a console does: it runs what it reads, one piece after the other.
CONSOLE = """
import traceback
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<console>", "exec"), globals())
    except Exception:
        tell(failed=traceback.format_exc())
    tell(done=True)
"""
#: Spark's processes live for seconds: they shall not spend them on compiling well.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


class Driver:
    """A driver process."""

    def __init__(self, folder: Path, script: str, environment: dict[str, str]) -> None:
        self.folder = folder
        source = folder / "driver.py"
        source.write_text(HEADER + textwrap.dedent(script))
        self._errors = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            text=True,
            start_new_session=True,
        )

    def next_result(self) -> dict[str, Any]:
        """Return the next line that the driver tells."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        raise AssertionError(f"the driver ended: {self.errors()}")

    def results(self) -> list[dict[str, Any]]:
        """Wait for the driver's end and return all that it told."""
        assert self.process.stdout is not None
        lines = list(self.process.stdout)
        assert self.process.wait() == 0, self.errors()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def errors(self) -> str:
        self._errors.flush()
        lines = (self.folder / "stderr").read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-8000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End whatever is left of it: the Java processes too."""
        left = processes_of(self.folder)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self._errors.close()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


class Console(Driver):
    """A driver that runs one piece of code after the other, all in one namespace.

    ``start()`` in it returns the one Spark session, of ``local-cluster[2,1,1024]``.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, CONSOLE, environment)

    def send(self, code: str) -> None:
        """Begin to run a piece of code."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
        self.process.stdin.flush()

    def run(self, code: str) -> dict[str, Any]:
        """Run a piece of code; return all that it tells, by name."""
        self.send(code)
        told: dict[str, Any] = {}
        while not (line := self.next_result()).get("done"):
            assert "failed" not in line, line["failed"] + self.errors()
            told.update(line)
        return told


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that run with this test's folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TEST_FOLDER") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def sparkray_processes(folder: Path) -> list[str]:
    """Return the command lines of those that are sparkray's own, the driver not."""
    commands = []
    for process in processes_of(folder):
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "sparkray." in command and "driver.py" not in command:
            commands.append(command)
    return commands


def leftovers(folder: Path) -> list[str]:
    """Return what a cluster has left: processes, files, segments."""
    files = [str(path) for path in (folder / "s").rglob("*")]
    segments = [
        str(path)
        for path in SHARED_MEMORY.glob("sparkray-*")
        if (folder / "clusters").exists()
        and path.name.split("-")[1] in (folder / "clusters").read_text().split()
    ]
    return sparkray_processes(folder) + files + segments


def wait_until_gone(folder: Path, timeout_s: float) -> None:
    """Wait until nothing is left of the cluster, or fail with what is."""
    deadline = time.monotonic() + timeout_s
    while left := leftovers(folder):
        if time.monotonic() > deadline:
            raise AssertionError("left: " + "\n".join(left))
        time.sleep(0.1)


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="srs-", dir="/tmp"))
    (path / "s").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def environment_of(folder: Path) -> dict[str, str]:
    """Return what drivers and all that they start have in their environment."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(REPO), os.environ.get("PYTHONPATH")])
        ),
        "SPARKRAY_TEMP_DIR": str(folder / "s"),
        "TEST_FOLDER": str(folder),
        "SPARKRAY_SPARK_START_TIMEOUT_S": "240",  # a busy machine
        "SPARK_LOCAL_DIRS": str(folder / "spark"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,
    }


@pytest.fixture
def folder() -> Iterator[Path]:
    with new_folder() as path:
        yield path


@pytest.fixture
def run_driver(folder: Path) -> Iterator[Callable[[str], Driver]]:
    drivers: list[Driver] = []

    def run(script: str) -> Driver:
        drivers.append(Driver(folder, script, environment_of(folder)))
        return drivers[-1]

    yield run
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="session")
def one_console() -> Iterator[Console]:
    with new_folder() as folder:
        made = Console(folder, environment_of(folder))
        yield made
        made.close()


@pytest.fixture
def console(one_console: Console) -> Iterator[Console]:
    """The console, with no sparkray in it before and after the test."""
    yield one_console
    one_console.run("sparkray.shutdown()")
    wait_until_gone(one_console.folder, 10)
