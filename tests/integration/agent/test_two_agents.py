"""Two real agents: leases and objects between nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkray.protocol import messages as m
from sparkray.resources import UNIT
from tests.integration.agent.raw_client import RawClient, eventually
from tests.integration.agent.test_agent import Node, free_cpus


class Pair:
    def __init__(self, cluster: Any, second: Any) -> None:
        self.cluster = cluster
        self.first, self.second = (
            Node(cluster, cluster.head_node),
            Node(cluster, second),
        )


@pytest.fixture
def pair(start_cluster: Callable[..., Any]) -> Iterator[Pair]:
    cluster = start_cluster(num_cpus=1)
    second = cluster.add_node(num_cpus=1, resources={"far": 2})
    cluster.wait_for_nodes()
    pair = Pair(cluster, second)
    yield pair
    for node in (pair.first, pair.second):
        for client in node.clients:
            client.close()


def test_what_does_not_fit_here_is_lent_by_the_other_node(pair: Pair) -> None:
    driver = pair.first.driver()
    here = driver.lease().leases[0]
    there = driver.lease().leases[0]
    assert here.worker.node_id == pair.first.node_id
    assert there.worker.node_id == pair.second.node_id
    eventually(lambda: free_cpus(driver) == 0)
    driver.send(m.ReturnLease(there.lease_id, True))
    eventually(lambda: free_cpus(driver) == 1)


def test_node_affinity_is_kept(pair: Pair) -> None:
    driver = pair.first.driver()
    strategy = m.Strategy("NODE", pair.second.node_id)
    lease = driver.lease(strategy=strategy).leases[0]
    assert lease.worker.node_id == pair.second.node_id
    call = driver.begin_lease(strategy=strategy)  # it is full now: this waits there
    driver.send(m.ReturnLease(lease.lease_id, True))
    assert driver.answer_to(call).leases[0].worker.node_id == pair.second.node_id


def test_custom_resources_are_found_where_they_are(pair: Pair) -> None:
    driver = pair.first.driver()
    lease = driver.lease(resources={"far": UNIT}).leases[0]
    assert lease.worker.node_id == pair.second.node_id


def test_leases_of_a_dead_driver_end_on_the_other_node_too(pair: Pair) -> None:
    driver, other = pair.first.driver(), pair.first.driver()
    assert driver.lease(2).leases
    assert driver.lease().leases
    eventually(lambda: free_cpus(other) == 0)
    driver.close()
    eventually(lambda: free_cpus(other) == 2)


def test_the_end_of_a_far_worker_is_known(pair: Pair) -> None:
    driver = pair.first.driver()
    strategy = m.Strategy("NODE", pair.second.node_id)
    worker = driver.lease(strategy=strategy).leases[0].worker
    driver.call(m.KillWorker, worker.worker_id, worker.node_id, "by the test")
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert "by the test" in death.reason and death.kind == "signal"


def test_a_node_that_dies_is_told_and_its_workers_died_with_it(pair: Pair) -> None:
    driver = pair.first.driver()
    strategy = m.Strategy("NODE", pair.second.node_id)
    worker = driver.lease(strategy=strategy).leases[0].worker
    pair.second.node.kill()
    told = driver.wait_for(lambda message: isinstance(message, m.NodeDied))
    assert told.node_id == pair.second.node_id
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert death.kind == "node"
    failed = driver.lease(strategy=strategy)
    assert failed.error.kind == "UnschedulableError"


def test_an_object_comes_from_the_other_node_once_for_all_who_ask(pair: Pair) -> None:
    driver = pair.first.driver()
    far = pair.second.client()
    far.attach("udf", job_id=driver.attached.job_id)
    object_id = far.worker_id + bytes(12)
    data = os.urandom(300_000)
    created = far.call(m.CreateObject, object_id, len(data))
    with open(created.path, "r+b") as segment:
        segment.write(data)
    far.send(m.SealObject(object_id, far.worker_id))
    source = m.ObjectSource(pair.second.node_id, "")
    calls = [driver.begin(m.PinObject, object_id, [source]) for _ in range(3)]
    answers = [driver.answer_to(call) for call in calls]
    assert len({answer.path for answer in answers}) == 1
    assert Path(answers[0].path).read_bytes()[: len(data)] == data
    assert answers[0].path != created.path
    _free_from(driver, far, object_id, pair)


def _free_from(driver: RawClient, far: RawClient, object_id: bytes, pair: Pair) -> None:
    driver.send(m.UnpinObjects([object_id] * 3))
    far.send(m.FreeObjects([object_id], [pair.first.node_id]))
    eventually(
        lambda: isinstance(driver.call(m.PinObject, object_id, []), m.CallFailed)
    )


def test_an_object_that_nobody_has_is_lost(pair: Pair) -> None:
    driver = pair.first.driver()
    source = m.ObjectSource(pair.second.node_id, "")
    failed = driver.call(m.PinObject, bytes(28), [source])
    assert failed.error.kind == "ObjectLostError"


def test_output_on_the_other_node_reaches_the_driver(pair: Pair) -> None:
    driver = pair.first.driver()
    strategy = m.Strategy("NODE", pair.second.node_id)
    worker = driver.lease(strategy=strategy).leases[0].worker
    with pair.second.log_of(worker.worker_id, "err").open("ab") as log:
        log.write(b"\x01task:far\nhello\n")
    lines = driver.wait_for(lambda message: isinstance(message, m.LogLines))
    assert (lines.name, lines.lines, lines.is_stderr) == ("far", ["hello"], True)
