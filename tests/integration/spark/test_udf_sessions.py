"""A Spark Python worker as sparkray sees it: a process with a task context, that goes
from one Spark task to the next.  Spark itself is played by the test."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import sparkray
from sparkray.launch.process import NodeOptions, NodeProcess, start_node
from tests import leaks
from tests.support import Gate, Tally, driver_environment, until

pytestmark = pytest.mark.timeout(120)

WORKER = """
import base64, json, sys, types
import cloudpickle

class TaskContext:
    properties, attempt = {}, 0
    @classmethod
    def get(cls):
        return cls()
    def getLocalProperty(self, name):
        return self.properties.get(name)
    def taskAttemptId(self):
        return self.attempt

module = types.ModuleType("pyspark.taskcontext")
module.TaskContext = TaskContext
sys.modules["pyspark.taskcontext"] = module
kept = {}  # as broadcast variables are: for as long as the process lives
for line in sys.stdin:
    task = json.loads(line)
    TaskContext.properties = task["properties"]
    TaskContext.attempt += 1
    try:
        function = cloudpickle.loads(base64.b64decode(task["function"]))
        said = {"result": function(kept)}
        del function
    except Exception as error:
        said = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(said), flush=True)
"""


class SparkWorker:
    """A Python worker that runs what Spark tasks are made of."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=driver_environment(),
            text=True,
        )

    def begin(
        self, function: Callable[[dict[str, Any]], Any], **properties: str
    ) -> None:
        task = {
            "function": base64.b64encode(cloudpickle.dumps(function)).decode(),
            "properties": {f"sparkray.{k}": value for k, value in properties.items()},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def run(self, function: Callable[[dict[str, Any]], Any], **properties: str) -> Any:
        self.begin(function, **properties)
        said = self.end()
        assert "result" in said, said
        return said["result"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def shared_cluster() -> Iterator[NodeProcess]:
    node = start_node(NodeOptions(head=True, host="127.0.0.1", num_cpus=2))
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def cluster(cluster_root: Path) -> Iterator[NodeProcess]:
    with leaks.no_leaks(cluster_root), shared_cluster() as node:
        try:
            yield node
        finally:
            sparkray.shutdown()


@pytest.fixture
def worker() -> Iterator[SparkWorker]:
    made = SparkWorker()
    yield made
    made.close()


def place(context: sparkray.Context) -> dict[str, str]:
    return {"address": context.address, "job": context.job_id}


def is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@sparkray.remote
def job_of_task() -> str:
    return sparkray.get_runtime_context().get_job_id()


def job_here(kept: dict[str, Any]) -> list[str]:
    """The first use of sparkray is a remote function that lives in a module."""
    import tests.integration.spark.test_udf_sessions as module

    here = sparkray.get(module.job_of_task.remote(), timeout=60)
    return [here, sparkray.get_runtime_context().get_job_id()]


def test_a_worker_is_of_the_job_that_its_present_task_was_told_of(
    cluster: NodeProcess, worker: SparkWorker
) -> None:
    for _ in range(2):
        context = sparkray.init(cluster.node.head)
        for _ in range(2):
            assert worker.run(job_here, **place(context)) == [context.job_id] * 2
        assert worker.run(job_here) == [context.job_id] * 2  # told nothing: as it was
        sparkray.shutdown()

    def is_left() -> Any:
        worker.begin(job_here)
        result = worker.end().get("result")  # none while the job is just ending
        return result if result != [context.job_id] * 2 else None  # not told of it yet

    own = until(is_left)  # its job has ended and it is told of none: one of its own
    assert own[0] == own[1] != context.job_id


def test_a_worker_joins_the_next_cluster_when_its_own_has_ended(
    cluster: NodeProcess, worker: SparkWorker
) -> None:
    context = sparkray.init(cluster.node.head)
    assert worker.run(job_here, **place(context))[0] == context.job_id
    sparkray.shutdown()
    cluster.stop()
    worker.begin(job_here)
    said = worker.end()
    assert said["error"] == "ConnectionError" and "sparkray.init(spark)" in said["text"]
    with shared_cluster() as other:
        context = sparkray.init(other.node.head)
        assert worker.run(job_here, **place(context))[0] == context.job_id
        sparkray.shutdown()


def test_any_first_use_joins_and_init_changes_nothing_later(
    cluster: NodeProcess,
) -> None:
    context = sparkray.init(cluster.node.head, namespace="the driver's")

    def later(kept: dict[str, Any]) -> Any:
        env: dict[str, Any] = {"env_vars": {}}
        return sparkray.init(namespace="another", runtime_env=env).namespace

    for first in (
        lambda kept: sparkray.get_runtime_context().get_job_id(),
        lambda kept: sparkray.put(1) and sparkray.get_runtime_context().get_job_id(),
        lambda kept: sparkray.init().job_id,
        lambda kept: sparkray.init(namespace="mine", num_cpus=8).job_id,
    ):
        worker = SparkWorker()
        assert worker.run(first, **place(context)) == context.job_id
        assert worker.run(later, **place(context)) == "the driver's"
        worker.close()


def test_refs_and_handles_from_the_driver_work_in_every_task_of_a_worker(
    cluster: NodeProcess, worker: SparkWorker
) -> None:
    """Also those that the process keeps, after another task has left the cluster."""

    @sparkray.remote
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, by: int) -> int:
            self.count += by
            return self.count

    context = sparkray.init(cluster.node.head)
    there = place(context)
    counter, number, text = (
        Counter.remote(),
        sparkray.put(20),
        sparkray.put("x" * 10**6),
    )

    def keep(kept: dict[str, Any]) -> None:
        kept["all"] = counter, number, text

    def use(kept: dict[str, Any]) -> list[Any]:
        handle, a_number, a_text = kept["all"]
        calls = [handle.add.remote(1), handle.add.remote(a_number)]
        return [*sparkray.get(calls, timeout=60), len(sparkray.get(a_text))]

    def leave(kept: dict[str, Any]) -> bool:
        sparkray.shutdown()
        sparkray.shutdown()
        return sparkray.is_initialized()

    worker.run(keep, **there)
    assert worker.run(use, **there) == [1, 21, 10**6]
    assert worker.run(leave, **there) is False
    assert worker.run(use, **there) == [22, 42, 10**6]
    assert sparkray.get(counter.add.remote(1), timeout=60) == 43


def test_a_worker_that_leaves_or_dies_takes_along_what_it_started_and_nothing_else(
    cluster: NodeProcess, tmp_path: Path
) -> None:
    context = sparkray.init(cluster.node.head)
    begun, ended, gate = Tally(tmp_path), Tally(tmp_path), Gate(tmp_path)

    @sparkray.remote(num_cpus=1)
    def wait() -> str:
        begun.add()
        try:
            gate.wait()
        finally:
            ended.add()
        return "done"

    mine = wait.remote()
    until(lambda: begun.count() == 1)
    kept = sparkray.put("kept")

    def start(_: dict[str, Any]) -> str:
        made = sparkray.put(b"x" * 3_000_000)
        sparkray.wait([wait.remote()], timeout=0)
        return sparkray.get(wait.remote(), timeout=60) if made else ""

    def leave(_: dict[str, Any]) -> None:
        import threading
        import time

        threading.Thread(target=start, args=({},), daemon=True).start()
        while begun.count() < 2:
            time.sleep(0.02)
        sparkray.shutdown()

    stored = sparkray.available_resources()["object_store_memory"]
    for count, ends in ((1, leave), (2, start)):
        worker = SparkWorker()
        worker.begin(ends, **place(context))
        if ends is leave:
            worker.end()
        else:
            until(lambda: begun.count() == 3)
            os.kill(worker.process.pid, signal.SIGKILL)
        until(lambda count=count: ended.count() == count)
        until(lambda: sparkray.available_resources().get("CPU") == 1)
        until(lambda: sparkray.available_resources()["object_store_memory"] == stored)
        worker.close()
    sockets = Path(cluster.node.session_dir) / "sockets"
    until(lambda: all(map(is_listened_to, sockets.iterdir())))
    assert sparkray.get(kept) == "kept"
    gate.open()
    assert sparkray.get(mine, timeout=60) == "done"
    assert begun.count() == 3  # nothing of theirs was begun anew
