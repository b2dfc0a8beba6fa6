"""From a Spark Connect session: the driver is a client of a server that lives on."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import (
    NEEDS_SPARK,
    REPO,
    Driver,
    new_folder,
    processes_of,
    wait_until_gone,
)

pyspark = pytest.importorskip("pyspark")
pytest.importorskip("grpc_status")
pytest.importorskip("google.rpc")

JARS = Path(pyspark.__file__).parent / "jars"
pytestmark = [
    *NEEDS_SPARK,
    pytest.mark.skipif(
        not list(JARS.glob("spark-connect_*.jar")),
        reason="this pyspark comes without the Connect server",
    ),
]
Run = Callable[[str], Driver]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

BEGIN = """
    from sparkray.spark import start_cluster, stop_cluster

    address = os.environ["CONNECT_SERVER"]
    spark = SparkSession.builder.remote(address).getOrCreate()
    square = sparkray.remote(nested)
"""


class Server:
    """A Spark Connect server with two executors of two cores each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.ui_port = _free_port(), _free_port()
        settings = {
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.port": self.ui_port,
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": 2,
        }
        given = [f"--conf={name}={value}" for name, value in settings.items()]
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        self._log = (folder / "server").open("w")
        self._process = subprocess.Popen(
            [submit, "--class", SERVER, "--master", "local-cluster[2,2,1024]", *given],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(REPO),
                "SPARKRAY_TEMP_DIR": str(folder / "s"),
                "TEST_FOLDER": str(folder),
                "SPARK_LOCAL_DIRS": str(folder / "spark"),
                "SPARK_WORKER_DIR": str(folder / "work"),
            },
        )

    def wait(self, timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self.port)):
                    return
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, (self.folder / "server").read_text()[-4000:]
            time.sleep(0.1)

    def running_jobs(self) -> list[dict[str, Any]]:
        """Return what Spark's UI says of the jobs that run."""
        base = f"http://127.0.0.1:{self.ui_port}/api/v1/applications"
        (application,) = _read(base)
        jobs: list[dict[str, Any]] = _read(
            f"{base}/{application['id']}/jobs?status=running"
        )
        return jobs

    def stop(self) -> None:
        for process in processes_of(self.folder):
            if process.name() == "java":
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._process.kill()
        self._process.wait()
        self._log.close()


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    with new_folder() as folder:
        started = Server(folder)
        try:
            started.wait()
            yield started
        finally:
            started.stop()


@pytest.fixture
def server(one_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, with no job and nothing of sparkray's after the test."""
    monkeypatch.setenv("CONNECT_SERVER", f"sc://127.0.0.1:{one_server.port}")
    yield one_server
    wait_until_idle(one_server, 60)
    wait_until_gone(one_server.folder, 30)


@pytest.mark.timeout(900)
def test_a_connect_session_has_a_cluster_with_udfs_and_gives_its_slots_back(
    server: Server, run_driver: Run
) -> None:
    results = run_driver(
        BEGIN
        + """
    start_cluster(spark, num_nodes=2)
    tell(nodes=len(executors()))
    answers = sparkray.get([square.remote(x) for x in range(9)])
    tell(answers=[answer for answer, *_ in answers])
    shared = sparkray.put(list(range(1000)))

    def search(rows):
        calls = [square.remote(x, 0.1) for x in range(20)]
        answers, places, _ = zip(*sparkray.get(calls))
        rows["total"] = sum(answers) + sum(sparkray.get(shared))
        rows["places"] = len(set(places))
        return rows

    frame = spark.range(2, numPartitions=2).groupBy("id")
    found = frame.applyInPandas(search, "id long, total long, places long").toPandas()
    tell(rows=found.to_dict("records"))
    stop_cluster()
    """
    ).results()
    told = {name: value for line in results for name, value in line.items()}
    assert told["nodes"] == 2
    assert told["answers"] == [x * x for x in range(9)]
    for row in told["rows"]:
        assert row["total"] == sum(x * x for x in range(20)) + sum(range(1000))
        assert row["places"] == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nodes_follow_the_demand_within_the_limits(
    server: Server, run_driver: Run
) -> None:
    results = run_driver(
        BEGIN
        + """
    start_cluster(spark, 1, 2, idle_timeout_s=1)
    tell(first=len(executors()))
    gate = os.path.join(os.environ["TEST_FOLDER"], "gate")

    @sparkray.remote
    def work(x):
        open(f"{gate}-begun-{x}", "w").close()
        while not os.path.exists(gate):
            time.sleep(0.02)
        return x, sparkray.get_runtime_context().get_node_id()

    refs = [work.remote(x) for x in range(4)]
    while not all(os.path.exists(f"{gate}-begun-{x}") for x in range(4)):
        time.sleep(0.05)
    open(gate, "w").close()
    answers, places = zip(*sparkray.get(refs))
    tell(answers=answers, places=len(set(places)))
    while len(executors()) > 1:
        time.sleep(0.05)
    tell(left=len(executors()))
    """
    ).results()
    told = {name: value for line in results for name, value in line.items()}
    assert told["first"] == told["left"] == 1
    assert told["answers"] == list(range(4)) and told["places"] == 2


@pytest.mark.timeout(900)
def test_data_frames_are_exchanged_without_the_client(
    server: Server, run_driver: Run
) -> None:
    results = run_driver(
        BEGIN
        + """
    from sparkray.spark import from_dataframe, map_batches, to_dataframe

    start_cluster(spark, num_nodes=2)
    frame = spark.range(1000, numPartitions=4)
    refs = from_dataframe(frame)
    rows = sparkray.remote(lambda table: table.num_rows)
    tell(rows=sparkray.get([rows.remote(ref) for ref in refs]))
    back = to_dataframe(refs, spark)
    tell(total=back.groupBy().sum("id").collect()[0][0])
    tell(types=[(name, kind) for name, kind in back.dtypes])

    class Doubler:
        def __init__(self):
            self.by = 2

        def __call__(self, batch):
            return {"id": batch["id"] * self.by}

    doubled = map_batches(frame, Doubler, batch_size=100, concurrency=2)
    tell(doubled=doubled.groupBy().sum("id").collect()[0][0])
    """
    ).results()
    told = {name: value for line in results for name, value in line.items()}
    assert told["rows"] == [250] * 4
    assert told["total"] == sum(range(1000)) and told["types"] == [["id", "bigint"]]
    assert told["doubled"] == 2 * sum(range(1000))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_client_that_is_killed_gives_its_slots_back(
    server: Server, run_driver: Run, folder: Path
) -> None:
    driver = run_driver(
        BEGIN
        + """
    start_cluster(spark, num_nodes=2)
    refs = [square.remote(x, 60) for x in range(8)]
    tell(nodes=len(executors()))
    time.sleep(1000)
    """
    )
    assert driver.next_result()["nodes"] == 2
    assert server.running_jobs()
    driver.kill()
    wait_until_idle(server, 30)
    for place in (folder, server.folder):
        wait_until_gone(place, 30)


def wait_until_idle(server: Server, timeout_s: float) -> None:
    """Wait until no job runs on the server: all slots are free."""
    deadline = time.monotonic() + timeout_s
    while jobs := server.running_jobs():
        assert time.monotonic() < deadline, jobs
        time.sleep(0.2)
