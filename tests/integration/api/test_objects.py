import time
from collections.abc import Iterator
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import GetTimeoutError
from sparkray.util import as_completed, state


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with sparkray.init(num_cpus=2, address="local"):
        yield


@sparkray.remote
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.parametrize("bad", [5, None, "ref", (1,), {}, [5], [None], [[]]])
def test_get_takes_a_ref_or_a_list_of_refs(bad: Any) -> None:
    with pytest.raises(TypeError, match="get takes an ObjectRef or a list"):
        sparkray.get(bad)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)],
)
def test_a_timeout_is_a_number_of_seconds(timeout: Any, error: type[Exception]) -> None:
    ref = sparkray.put(1)
    with pytest.raises(error, match="timeout"):
        sparkray.get(ref, timeout=timeout)
    with pytest.raises(error, match="timeout"):
        sparkray.wait([ref], timeout=timeout)


def test_get_waits_as_long_as_it_is_told() -> None:
    ref = nap.remote(0.5)
    with pytest.raises(GetTimeoutError):
        sparkray.get(ref, timeout=0)
    assert sparkray.get(ref, timeout=float("inf")) == 0.5
    assert sparkray.get([], timeout=0) == []


def test_wait_states_both_counts() -> None:
    first, second = sparkray.put(1), sparkray.put(2)
    with pytest.raises(ValueError, match="3 of 2 refs"):
        sparkray.wait([first, second], num_returns=3)
    with pytest.raises(ValueError, match="0 of 2 refs"):
        sparkray.wait([first, second], num_returns=0)
    with pytest.raises(ValueError, match="3 refs, only 2 of them"):
        sparkray.wait([first, second, first])
    with pytest.raises(TypeError, match="whole number"):
        sparkray.wait([first], num_returns=1.0)  # type: ignore[arg-type]
    assert sparkray.wait([]) == ([], [])


@pytest.mark.parametrize("bad", ["refs", (1,), [1], [None]])
def test_wait_takes_a_list_of_refs(bad: Any) -> None:
    with pytest.raises(TypeError, match="wait takes a list"):
        sparkray.wait(bad)


def test_a_ref_cannot_be_put_but_a_list_of_it_can() -> None:
    ref = sparkray.put("x")
    with pytest.raises(TypeError, match="put it into a list"):
        sparkray.put(ref)
    assert sparkray.get(sparkray.put([ref])) == [ref]


@pytest.mark.parametrize("bad", ["ref", 5, None, []])
def test_only_a_ref_can_be_cancelled(bad: Any) -> None:
    with pytest.raises(TypeError, match="cancel takes"):
        sparkray.cancel(bad)


def test_as_completed_yields_each_ref_once_the_quick_ones_first() -> None:
    slow, quick = nap.remote(0.6), nap.remote(0.0)
    assert list(as_completed([slow, quick, slow])) == [quick, slow]


def test_as_completed_stops_waiting_in_time() -> None:
    slow, quick = nap.remote(0.6), sparkray.put(0)
    seen = []
    with pytest.raises(TimeoutError, match="1 of 2"):
        for ref in as_completed([slow, quick], timeout=0.1):
            seen.append(ref)
    assert seen == [quick]
    assert sparkray.get(slow) == 0.6


def test_the_state_of_the_cluster_lists_what_there_is() -> None:
    ref = sparkray.put(bytes(1 << 20))
    (row,) = [r for r in state.list_objects() if r.object_id == ref.hex()]
    (node,) = state.list_nodes()
    assert row.state == "stored" and row.local_refs == 1 and row.borrowers == 0
    assert row.size_bytes >= 1 << 20 and row.nodes == (node.node_id,)
    (job,) = [job for job in state.list_jobs() if job.alive]
    assert job.driver_pid == row.owner_pid and job.driver_node_id == node.node_id
    key = ref.hex()
    del ref
    deadline = time.monotonic() + 10
    while key in {r.object_id for r in state.list_objects()}:
        assert time.monotonic() < deadline


def test_nodes_have_the_keys_of_the_field() -> None:
    (row,) = sparkray.nodes()
    assert row["Alive"] is True and row["IsHead"] is True and row["DeathReason"] == ""
    assert row["NodeID"] == sparkray.get_runtime_context().get_node_id()
    assert row["Resources"]["CPU"] == 2 == sparkray.cluster_resources()["CPU"]
    assert isinstance(sparkray.available_resources()["memory"], float)
