"""Devices of GPUs on a node that says it has some: who sees which, and when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.util.placement_group import placement_group, remove_placement_group
from sparkray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support import Gate, Tally, run_driver, until


@pytest.fixture
def gpus(fresh: ModuleType) -> Iterator[None]:
    sparkray.init(num_cpus=4, num_gpus=2)
    yield


def seen() -> dict[str, Any]:
    """What the calling code finds."""
    context = sparkray.get_runtime_context()
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "accelerators": context.get_accelerator_ids(),
        "ids": sparkray.get_gpu_ids(),
        "assigned": context.get_assigned_resources().get("GPU", 0),
        "pid": os.getpid(),
    }


look = sparkray.remote(seen)


@sparkray.remote(num_gpus=1)
def hold(gate: Gate, begun: Tally) -> str:
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    begun.add(f"{os.getpid()} {visible}")
    gate.wait()
    return visible


@sparkray.remote(num_cpus=0, num_gpus=1)
class Holder:
    def __init__(self) -> None:
        self.first = os.environ["CUDA_VISIBLE_DEVICES"]

    def seen(self) -> dict[str, Any]:
        return seen()

    async def seen_later(self) -> dict[str, Any]:
        return seen()

    def in_constructor(self) -> str:
        return self.first


def whole(ref: Any) -> Any:
    return sparkray.get(ref, timeout=30)


def all_free() -> bool:
    return sparkray.available_resources().get("GPU") == 2


def test_two_tasks_at_once_have_different_devices_and_a_third_waits(
    gpus: None, tmp_path: Path
) -> None:
    gate, begun = Gate(tmp_path), Tally(tmp_path)
    refs = [hold.remote(gate, begun) for _ in range(3)]
    until(lambda: begun.count() == 2)
    assert {line.split()[1] for line in begun.lines()} == {"0", "1"}
    gate.open()
    assert set(whole(refs)) == {"0", "1"}
    until(all_free)


def test_a_task_finds_its_devices_in_every_place_where_it_may_look(gpus: None) -> None:
    one = whole(look.options(num_gpus=1).remote())
    assert one["visible"] == "0" and one["accelerators"] == {"GPU": ["0"]}
    assert one["ids"] == [0] and one["assigned"] == 1
    both = whole(look.options(num_gpus=2).remote())
    assert both["visible"] == "0,1" and both["ids"] == [0, 1]
    without = whole(look.remote())
    assert without["visible"] == "" and without["ids"] == []
    assert sparkray.get_gpu_ids() == []  # the driver


def test_halves_share_a_device(gpus: None, tmp_path: Path) -> None:
    gate, begun = Gate(tmp_path), Tally(tmp_path)
    half = hold.options(num_gpus=0.5, num_cpus=0.5)
    refs = [half.remote(gate, begun) for _ in range(2)]
    refs.append(hold.remote(gate, begun))
    until(lambda: begun.count() == 3)
    gate.open()
    first, second, other = whole(refs)
    assert first == second != other


def test_a_process_that_had_a_device_runs_no_task_with_another(gpus: None) -> None:
    task = look.options(num_gpus=1)
    pids = [whole(task.remote())["pid"] for _ in range(3)]
    assert len(set(pids)) == 3
    reused = look.options(num_gpus=1, max_calls=0)
    first = whole(reused.remote())["pid"]
    found = [whole(reused.remote()) for _ in range(3)]
    assert {one["pid"] for one in found} == {first}
    assert whole(look.remote())["visible"] == ""


def test_actors_keep_their_devices_and_give_them_back_when_they_end(gpus: None) -> None:
    holders = [Holder.remote() for _ in range(2)]
    found = [whole(holder.seen.remote()) for holder in holders]
    assert sorted(one["visible"] for one in found) == ["0", "1"]
    for holder, one in zip(holders, found, strict=True):
        assert whole(holder.in_constructor.remote()) == one["visible"]
        assert whole(holder.seen_later.remote())["ids"] == one["ids"]
        assert one["assigned"] == 1
    third = Holder.remote()
    answer = third.seen.remote()
    assert sparkray.wait([answer], timeout=0.3)[0] == []
    sparkray.kill(holders[1])
    assert whole(answer)["visible"] == found[1]["visible"]


def test_an_actor_keeps_its_devices_though_its_caller_had_tasks_on_the_same_worker(
    gpus: None,
) -> None:
    whole([look.remote() for _ in range(20)])
    holder = Holder.options(num_cpus=4).remote()  # waits for all of them to be free
    found = whole(holder.seen.remote())
    assert found["visible"] == "0" and found["ids"] == [0]


def test_an_actor_without_gpus_sees_none(gpus: None) -> None:
    plain = Holder.options(num_gpus=0).remote()
    found = whole(plain.seen.remote())
    assert found["visible"] == "" and found["ids"] == []


def test_a_killed_worker_gives_its_devices_back(gpus: None, tmp_path: Path) -> None:
    gate, begun = Gate(tmp_path), Tally(tmp_path)
    refs = [hold.options(max_retries=0).remote(gate, begun) for _ in range(2)]
    until(lambda: begun.count() == 2)
    pid, device = begun.lines()[0].split()
    waiting = hold.remote(gate, begun)
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: begun.count() == 3)
    assert begun.lines()[2].split()[1] == device
    gate.open()
    assert whole(waiting) == device
    survivors = [ref for ref in refs if not fails(ref)]
    assert len(survivors) == 1
    until(all_free)


def fails(ref: Any) -> bool:
    try:
        whole(ref)
    except sparkray.exceptions.SparkrayError:
        return True
    return False


def test_bundles_keep_their_devices_and_tasks_use_them_inside(gpus: None) -> None:
    group = placement_group([{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 0.5}])
    whole(group.ready())

    def inside(index: int) -> Any:
        return PlacementGroupSchedulingStrategy(group, index)

    def visible(index: int, num_gpus: float) -> str:
        task = look.options(scheduling_strategy=inside(index), num_gpus=num_gpus)
        found: str = whole(task.remote())["visible"]
        return found

    of_first, of_second = visible(0, 1), visible(1, 0.5)
    assert {of_first, of_second} == {"0", "1"}
    for _ in range(2):
        assert visible(0, 0.5) == of_first and visible(1, 0.25) == of_second
        assert visible(0, 0) == ""
    member = Holder.options(scheduling_strategy=inside(0)).remote()
    assert whole(member.seen.remote())["visible"] == of_first
    outside = whole(look.options(num_gpus=0.5).remote())
    assert outside["visible"] == of_second  # half of it is not reserved
    remove_placement_group(group)
    until(all_free)
    assert whole(look.options(num_gpus=2).remote())["visible"] == "0,1"


def test_nested_tasks_of_a_task_with_a_device_have_their_own(gpus: None) -> None:
    @sparkray.remote(num_gpus=1)
    def outer() -> tuple[str, str, str]:
        inner = sparkray.get(look.options(num_gpus=1).remote())
        without = sparkray.get(look.remote())
        return os.environ["CUDA_VISIBLE_DEVICES"], inner["visible"], without["visible"]

    mine, inner, without = whole(outer.remote())
    assert {mine, inner} == {"0", "1"} and without == ""


def test_parts_of_a_gpu_above_one_are_refused_at_the_call(gpus: None) -> None:
    with pytest.raises(ValueError, match="num_gpus above 1 must be whole"):
        look.options(num_gpus=1.5).remote()


SCRIPT = """
import os, sparkray
{init}
@sparkray.remote
def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), sparkray.get_gpu_ids()
print(sparkray.cluster_resources().get("GPU"))
for gpus in {gpus}:
    print(sparkray.get(visible.options(num_gpus=gpus).remote(), timeout=30))
"""


@pytest.mark.parametrize(
    ("devices", "init", "gpus", "expected"),
    [
        (
            "3,5",
            "sparkray.init(num_cpus=1)",
            (1, 2, 0),
            "2.0|('3', [3])|('3,5', [3, 5])|('', [])",
        ),
        ("3,5", "sparkray.init(num_cpus=1, num_gpus=1)", (1,), "1.0|('3', [3])"),
        ("GPU-a,GPU-b", "sparkray.init(num_cpus=1)", (1,), "2.0|('GPU-a', ['GPU-a'])"),
        ("3", "sparkray.init(num_cpus=1, num_gpus=2)", (2,), "2.0|('0,1', [0, 1])"),
        ("", "sparkray.init(num_cpus=1)", (0,), "None|('', [])"),
        ("7", "sparkray.init(num_cpus=1, num_gpus=0)", (0,), "None|('7', [])"),
    ],
)
def test_devices_are_those_that_the_node_may_see(
    devices: str, init: str, gpus: Any, expected: str, cluster_root: Path
) -> None:
    """A node without GPUs leaves the variable alone."""
    done = run_driver(SCRIPT.format(init=init, gpus=gpus), CUDA_VISIBLE_DEVICES=devices)
    assert done.stdout.splitlines() == expected.split("|"), done.stderr
