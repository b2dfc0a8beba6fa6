"""What a driver learns of its Spark application, also where Spark refuses to tell."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from sparkray.spark import addresses
from sparkray.spark.launch import SparkFacts
from sparkray.spark.sizing import Occupancy


class Info:
    """What Spark's tracker tells of one executor; None: it refuses to."""

    def __init__(self, running: int | None) -> None:
        self._running = running

    def numRunningTasks(self) -> int:
        if self._running is None:
            raise RuntimeError("the gateway is guarded")
        return self._running


def facts_of(settings: dict[str, str], *running: int | None) -> SparkFacts:
    """Facts of an application whose tracker lists a driver, then executors."""
    infos = [Info(number) for number in running]
    tracker = SimpleNamespace(getExecutorInfos=lambda: infos)
    scala: Any = SimpleNamespace(statusTracker=lambda: tracker)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    return SparkFacts(SimpleNamespace(conf=conf, sparkContext=context))


CLUSTER = {"spark.master": "spark://host:7077", "spark.executor.cores": "2"}


@pytest.mark.parametrize(
    ("settings", "running", "executors", "occupancy"),
    [
        (CLUSTER, (0, 1, 2), 2, Occupancy(2, 3, 4)),
        ({"spark.master": "local[4]"}, (3,), 1, Occupancy(1, 3, 4)),
        ({"spark.master": "yarn"}, (0, 1), 1, Occupancy(1, 1)),
    ],
)
def test_executors_are_counted_without_the_driver(
    settings: dict[str, str],
    running: tuple[int, ...],
    executors: int,
    occupancy: Occupancy,
) -> None:
    facts = facts_of(settings, *running)
    assert facts.executors() == executors
    assert facts.occupancy() == occupancy


def test_a_start_goes_on_where_spark_refuses_to_tell_of_tasks() -> None:
    occupancy = facts_of(CLUSTER, 0, None).occupancy()
    assert occupancy.running_tasks is None
    assert str(occupancy) == "Spark has 1 executor"


@pytest.mark.parametrize(
    ("master", "most"), [("spark://host:7077", 2), ("yarn", None), ("k8s://a:1", None)]
)
def test_cores_max_limits_executors_only_where_spark_heeds_it(
    master: str, most: int | None
) -> None:
    settings = {"spark.cores.max": "4", "spark.executor.cores": "2"}
    limit = facts_of({"spark.master": master, **settings}).limit
    assert (limit and limit.executors) == most


LOOPBACK, OURS = "127.0.1.1", "10.1.2.3"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What this host takes names for; all addresses but 10.9.9.9 are its own."""
    known: dict[str, str] = {}

    def resolve(name: str) -> str:
        if name not in known:
            raise OSError(f"{name} is not known")
        return known[name]

    class Probe(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] == "10.9.9.9":
                raise OSError("not an address of this host")

    monkeypatch.setattr(addresses.socket, "gethostbyname", resolve)
    monkeypatch.setattr(addresses.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(addresses.socket, "socket", Probe)
    monkeypatch.setattr(addresses, "address_towards", lambda host, port: f"to {host}")
    return known


@pytest.mark.parametrize(
    ("master", "driver", "here", "address"),
    [
        ("spark://m:7077", OURS, LOOPBACK, OURS),
        ("spark://m:7077", "10.9.9.9", OURS, OURS),  # a Connect server's host
        ("spark://m:7077", LOOPBACK, LOOPBACK, "to m"),
        ("spark://m:7077", "", LOOPBACK, "to m"),
        ("spark://a:1,b:2", "", LOOPBACK, "to "),
        ("yarn", "", None, "to "),
        ("local-cluster[2,1,1024]", LOOPBACK, OURS, LOOPBACK),
        ("local[2]", "", LOOPBACK, LOOPBACK),
    ],
)
def test_executors_get_an_address_that_reaches_the_driver(
    master: str, driver: str, here: str | None, address: str, names: dict[str, str]
) -> None:
    names |= {driver: driver} if driver else {}
    names |= {"here": here} if here else {}
    facts = facts_of({"spark.master": master, "spark.driver.host": driver})
    assert facts.driver_address() == address


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.1.1", True),
        ("localhost", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("executor-1", False),
        ("", False),
    ],
)
def test_loopback_hosts_are_known(host: str, is_loopback: bool) -> None:
    assert addresses.is_loopback(host) is is_loopback
