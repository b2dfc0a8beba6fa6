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

from .conftest import NEEDS_SPARK, REPO, Driver, processes_of, wait_until_gone

pyspark = pytest.importorskip("pyspark")
pytest.importorskip("grpc_status")
pytest.importorskip("google.rpc")

pytestmark = [*NEEDS_SPARK, pytest.mark.long]
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
        self._folder = folder
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
            assert not ended, (self._folder / "server").read_text()[-4000:]
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
        for process in processes_of(self._folder):
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


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    started = Server(folder)
    monkeypatch.setenv("CONNECT_SERVER", f"sc://127.0.0.1:{started.port}")
    try:
        started.wait()
        yield started
    finally:
        started.stop()


@pytest.mark.timeout(900)
def test_a_connect_session_has_a_cluster_with_udfs_and_gives_its_slots_back(
    server: Server, run_driver: Run, folder: Path
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
    wait_until_idle(server, 30)
    wait_until_gone(folder, 30)


def wait_until_idle(server: Server, timeout_s: float) -> None:
    """Wait until no job runs on the server: all slots are free."""
    deadline = time.monotonic() + timeout_s
    while jobs := server.running_jobs():
        assert time.monotonic() < deadline, jobs
        time.sleep(0.2)
