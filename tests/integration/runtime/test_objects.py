"""Objects: what comes back, what is shared, what is freed, what is lost with whom."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkray
from sparkray.exceptions import (
    ObjectLostError,
    OwnerDiedError,
)
from sparkray.util import state
from tests.support import driver_environment, quiet, run_driver, until

pytestmark = pytest.mark.usefixtures("shared", "no_garbage")
MB = 1 << 20


@sparkray.remote
def identity(value: Any) -> Any:
    return value


def rows() -> list[state.ObjectState]:
    return state.list_objects()


def nothing_is_left() -> bool:
    return not rows() and used() == 0


def nothing_is_stored() -> bool:
    return used() == 0 and all(row.state != "stored" for row in rows())


def used() -> float:
    (node,) = state.list_nodes()
    total, free = node.resources, node.available
    return total["object_store_memory"] - free["object_store_memory"]


# --- what comes back ---


@pytest.mark.parametrize("count", [10, 500_000], ids=["small", "large"])
def test_arrow_comes_back_as_arrow(count: int) -> None:
    batch = pa.RecordBatch.from_pydict({"n": range(count), "s": ["x"] * count})
    table = pa.Table.from_batches([batch, batch])
    for value in (table, batch):
        back = sparkray.get(sparkray.put(value))
        assert type(back) is type(value) and back.equals(value)
        boxed = sparkray.get(identity.remote({"inside": value}))["inside"]
        assert boxed.equals(value)
        again = sparkray.get(identity.remote(value))
        assert again.equals(value) and again.schema == value.schema


def test_a_large_arrow_table_is_not_copied() -> None:
    table = pa.table({"n": np.arange(2 * MB)})
    ref = sparkray.put(table)
    before = pa.total_allocated_bytes()
    back = sparkray.get(ref)
    assert pa.total_allocated_bytes() == before
    other = sparkray.get(ref)
    (mine,), (theirs,) = back["n"].chunks, other["n"].chunks
    assert mine.buffers()[1].address == theirs.buffers()[1].address


@pytest.mark.parametrize("size", [10, 1000, 5 * MB])
def test_arrays_are_read_only_at_any_size_everywhere(size: int) -> None:
    @sparkray.remote
    def writes(array: Any, box: dict[str, Any]) -> list[bool]:
        inner = sparkray.get(box["ref"])
        return [a.flags.writeable for a in (array, box["array"], inner)]

    array = np.arange(size)
    ref = sparkray.put(array)
    assert not sparkray.get(ref).flags.writeable
    assert not sparkray.get(identity.remote(array)).flags.writeable
    assert array.flags.writeable
    seen = sparkray.get(writes.remote(array, {"array": array, "ref": ref}))
    assert seen == [False] * 3
    with pytest.raises(ValueError, match="read-only"):
        sparkray.get(ref)[0] = 1


def test_two_gets_share_memory_and_a_view_outlives_its_ref() -> None:
    ref = sparkray.put(np.arange(MB))
    one, two = sparkray.get([ref, ref])
    three = sparkray.get(ref)
    assert np.shares_memory(one, two) and np.shares_memory(one, three)
    view = one[5:10]
    del ref, one, two, three
    more = [sparkray.put(np.zeros(MB)) for _ in range(3)]  # would reuse the segment
    assert view.tolist() == [5, 6, 7, 8, 9] and len(more) == 3


def test_tensors_share_memory_too() -> None:
    torch = pytest.importorskip("torch")
    ref = sparkray.put(torch.arange(MB))
    one, two = sparkray.get(ref), sparkray.get(ref)
    assert one.data_ptr() == two.data_ptr() and one.sum() == torch.arange(MB).sum()


# --- what is freed ---


def test_nothing_is_left_when_the_refs_are_gone() -> None:
    until(nothing_is_left)
    large = sparkray.put(np.zeros(MB))
    results = [identity.remote(large) for _ in range(3)]
    results += [identity.remote(i) for i in range(50)]
    nested = sparkray.put(
        [large, {"more": results[0]}, sparkray.put([sparkray.put(1)])]
    )
    sparkray.get(results)
    assert len(rows()) == 1 + 53 + 3
    del large, results
    kept = {
        row.object_id for row in until(lambda: [r for r in rows() if len(rows()) == 5])
    }
    assert nested.hex() in kept
    inner, more, boxed = sparkray.get(nested)
    assert sparkray.get(inner).nbytes == 8 * MB
    assert sparkray.get(more["more"]).nbytes == 8 * MB
    assert sparkray.get(sparkray.get(boxed)[0]) == 1
    del inner, more, boxed, nested
    until(nothing_is_left)


def test_refs_in_failed_and_cancelled_tasks_are_freed() -> None:
    @sparkray.remote
    def fails(*args: Any) -> None:
        raise ValueError("no")

    large = sparkray.put(np.zeros(MB))
    refs = [fails.remote(large, [large]) for _ in range(3)]
    refs.append(identity.remote(refs[0]))
    waits = identity.options(num_cpus=64).remote(large)
    sparkray.cancel(waits)
    sparkray.wait(refs, num_returns=4)
    del refs, large, waits
    until(nothing_is_left)


def test_a_borrower_is_counted_while_it_holds_a_ref() -> None:
    @sparkray.remote(resources={"gadget": 2})  # always the same worker
    def hold(box: list[Any] | None) -> int:
        import builtins

        shelf = builtins.__dict__.setdefault("_shelf_of_the_test", [])
        if box is None:
            value = int(sparkray.get(shelf.pop())[0])
            return value
        shelf.append(box[0])
        return os.getpid()

    ref = sparkray.put(np.full(MB, 7))
    key = ref.hex()
    sparkray.get(hold.remote([ref]))

    def row() -> Any:
        return next((r for r in rows() if r.object_id == key), None)

    assert row().borrowers == 1
    del ref
    until(lambda: row().local_refs == 0)
    assert quiet(lambda: row() is not None and row().borrowers == 1)
    assert sparkray.get(hold.remote(None)) == 7
    until(lambda: row() is None)
    until(nothing_is_left)


def test_a_borrower_that_is_killed_holds_nothing_any_more() -> None:
    @sparkray.remote(resources={"gadget": 2})
    def hold(box: list[Any]) -> int:
        import builtins

        builtins.__dict__["_held_by_the_test"] = box
        return os.getpid()

    ref = sparkray.put(np.zeros(MB))
    pid = sparkray.get(hold.remote([ref]))
    object_id = ref.hex()

    def borrowers() -> list[int]:
        return [row.borrowers for row in rows() if row.object_id == object_id]

    assert borrowers() == [1]
    del ref
    try:
        assert quiet(lambda: borrowers() == [1])
    finally:  # the tests after this one look at what is left
        os.kill(pid, signal.SIGKILL)
    until(nothing_is_left)


def test_streams_that_are_dropped_half_read_leave_nothing() -> None:
    @sparkray.remote
    def blocks() -> Any:
        for _ in range(6):
            yield np.zeros(MB)

    stream = blocks.remote()
    first = sparkray.get(next(stream))
    assert first.nbytes == 8 * MB
    del stream, first
    until(nothing_is_left)


def test_returned_generators_of_refs_leave_nothing() -> None:
    @sparkray.remote(num_returns="dynamic")
    def blocks() -> Any:
        for _ in range(3):
            yield np.zeros(MB)

    ref = blocks.remote()
    items = sparkray.get(ref)
    del ref
    assert sparkray.get(items[2]).nbytes == 8 * MB
    del items
    until(nothing_is_left)


def test_a_failed_get_of_several_leaves_no_pin() -> None:
    putter = Putter.remote()
    mine = sparkray.put(np.zeros(MB))
    (theirs, other), pid = sparkray.get(putter.put.remote(MB))
    sparkray.wait([theirs])
    os.kill(pid, signal.SIGKILL)
    until(lambda ref=theirs: _is_lost(ref))
    with pytest.raises(ObjectLostError):
        sparkray.get([theirs, mine])
    del mine, theirs, other, putter
    until(nothing_is_left)


def _is_lost(ref: Any) -> bool:
    try:
        sparkray.get(ref)
    except ObjectLostError:
        return True
    return False


# --- what is lost with whom ---


@sparkray.remote
class Putter:
    def put(self, count: int) -> tuple[list[Any], int]:
        return [sparkray.put(np.full(count, 4)) for _ in range(2)], os.getpid()


@pytest.mark.parametrize("count", [4, MB], ids=["small", "large"])
def test_objects_of_an_actor_that_died_say_whose_they_were(count: int) -> None:
    putter = Putter.remote()
    (seen, unseen), pid = sparkray.get(putter.put.remote(count))
    assert sparkray.get(seen)[0] == 4
    sparkray.wait([seen])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OwnerDiedError) as caught:
        sparkray.get(unseen, timeout=20)
    assert unseen.hex() in str(caught.value) and "owned it" in str(caught.value)
    if count == 4:
        assert sparkray.get(seen)[0] == 4  # the value is here already
    else:
        until(lambda: _owner_died(seen))
    task = identity.remote(unseen)
    with pytest.raises(OwnerDiedError):
        sparkray.get(task, timeout=20)


def _owner_died(ref: Any) -> bool:
    try:
        sparkray.get(ref)
    except OwnerDiedError:
        return True
    return False


def test_a_worker_lives_as_long_as_its_objects_are_in_use_and_no_longer() -> None:
    code = """
import os, time
import numpy as np
import sparkray

sparkray.init(num_cpus=1)

@sparkray.remote(num_cpus=0)
def put_and_tell():
    return [sparkray.put(np.arange(1 << 18)), sparkray.put(5)], os.getpid()

def alive(pid):
    return os.path.exists(f"/proc/{pid}")

boxes = sparkray.get([put_and_tell.remote() for _ in range(3)])
pids = {pid for _, pid in boxes}
time.sleep(4)
print(all(map(alive, pids)))
print(all(sparkray.get(r)[-1] == (1 << 18) - 1 and sparkray.get(s) == 5
          for (r, s), _ in boxes))
del boxes
deadline = time.monotonic() + 20
while sum(map(alive, pids)) > 1 and time.monotonic() < deadline:
    time.sleep(0.1)
print(sum(map(alive, pids)) <= 1)
"""
    run = run_driver(code, SPARKRAY_WORKER_IDLE_S="0.5")
    assert run.stdout.split() == ["True"] * 3, run.stderr


# --- more than fits ---

LITTLE = """
import numpy as np
import sparkray
MB = 1 << 20
sparkray.init(num_cpus=2, object_store_memory=60 * MB)

@sparkray.remote
def make(i, megabytes):
    return np.full(megabytes * MB, i, np.uint8)
"""


def test_five_times_the_store_fits_if_it_is_not_in_use() -> None:
    code = """
refs = [make.remote(i, 15) for i in range(10)]
refs += [sparkray.put(np.full(15 * MB, i, np.uint8)) for i in range(10, 20)]
print([int(sparkray.get(ref)[-1]) for ref in refs] == list(range(20)))
rows = sparkray.available_resources()
print(rows["object_store_memory"] >= 0)
"""
    run = run_driver(LITTLE + code)
    assert run.stdout.split() == ["True", "True"], run.stderr


def test_a_full_store_says_what_is_in_it_and_works_again_afterwards() -> None:
    code = """
from sparkray.exceptions import ObjectStoreFullError
views = [sparkray.get(sparkray.put(np.zeros(25 * MB, np.uint8))) for _ in range(2)]
for attempt in (lambda: sparkray.put(np.zeros(25 * MB, np.uint8)),
                lambda: sparkray.get(make.remote(1, 25)),
                lambda: sparkray.put(np.zeros(70 * MB, np.uint8))):
    try:
        attempt()
    except ObjectStoreFullError as error:
        print(error)
del views
print(sparkray.get(make.remote(3, 25))[0])
"""
    run = run_driver(LITTLE + code, SPARKRAY_STORE_FULL_TIMEOUT_S="1")
    put, task, huge, value = _paragraphs(run.stdout)
    for text in (put, task):
        assert "in use by readers" in text or "still in use" in text, run.stdout
        assert str(60 << 20) in text and "object_store_memory" in text
    assert "make" in task and "larger than the store" in huge and value == "3"


def _paragraphs(text: str) -> list[str]:
    """Split printed errors: each but the last one ends with the same advice."""
    parts = text.strip().split("object_store_memory\n")
    return [part + "object_store_memory" for part in parts[:-1]] + parts[-1:]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="only root can mount a small /dev/shm of its own",
)
def test_in_a_container_with_little_shared_memory_large_objects_work() -> None:
    code = """
import numpy as np
import sparkray
sparkray.init(num_cpus=1)
array = np.arange(25_000_000)
ref = sparkray.put(array)
same = sparkray.remote(lambda a: int(a[-1]) + len(a))
print((sparkray.get(ref) == array).all(), sparkray.get(same.remote(ref)))
"""
    shell = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec $0 -c '$1'"
    command = ["unshare", "-m", "sh", "-c", shell.replace("'$1'", '"$1"')]
    run = subprocess.run(
        [*command, sys.executable, code],
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=50,
    )
    if "unshare" in run.stderr or "mount:" in run.stderr:
        pytest.skip(run.stderr)
    assert run.stdout.split() == ["True", "49999999"], run.stderr
    warnings = [line for line in run.stderr.splitlines() if "/dev/shm" in line]
    assert len(warnings) == 1 and "67108864" in warnings[0], run.stderr


# --- what functions take along ---


def dragging(value: Any) -> Any:
    @sparkray.remote
    def look() -> Any:
        return value[-1]

    return look


def test_a_large_function_is_stored_once_and_goes_with_its_last_user() -> None:
    array = np.arange(MB)
    look = dragging(array)
    assert sparkray.get([look.remote() for _ in range(8)]) == [MB - 1] * 8
    sizes = [row.size_bytes for row in rows() if row.state == "stored"]
    assert len(sizes) == 1 and sizes[0] >= array.nbytes
    look.remote()  # runs though nobody keeps the function
    del look
    until(nothing_is_stored)
    assert sparkray.get(dragging(array).remote()) == MB - 1  # once more, by its hash
    until(nothing_is_stored)


def test_a_ref_in_a_closure_goes_with_the_function() -> None:
    def summing(ref: sparkray.ObjectRef) -> Any:
        @sparkray.remote
        def total() -> float:
            return float(sparkray.get(ref).sum())

        return total

    total = summing(sparkray.put(np.arange(MB)))
    assert sparkray.get(total.remote()) == MB * (MB - 1) / 2
    assert any(row.state == "stored" for row in rows())
    del total
    until(lambda: all(row.local_refs == 0 for row in rows()))


def test_a_large_function_goes_in_a_message_where_messages_may_be_larger() -> None:
    code = """
import sparkray
data = bytes(2_000_000)

@sparkray.remote
def length():
    return len(data)

sparkray.init(num_cpus=1)
print(sparkray.get(length.remote(), timeout=30))
"""
    run = run_driver(code, SPARKRAY_INLINE_MAX_BYTES="4000000")
    assert run.stdout == "2000000\n", run.stderr
