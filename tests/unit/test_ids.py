from hypothesis import given
from hypothesis import strategies as st

from sparkray import ids

numbers = st.integers(0, 2**64 - 1)
indices = st.integers(0, 2**32 - 1)
workers = st.binary(min_size=16, max_size=16).map(ids.WorkerID)


@given(workers, numbers, indices)
def test_an_object_id_tells_owner_task_number_and_index(
    owner: ids.WorkerID, number: int, index: int
) -> None:
    object_id = ids.object_id(owner, number, index)
    assert ids.owner_of(object_id) == owner
    assert ids.task_of(object_id) == ids.task_id(owner, number)
    assert ids.number_of(object_id) == ids.number_of(ids.task_of(object_id)) == number
    assert ids.index_of(object_id) == index


@given(workers, numbers, indices)
def test_ids_have_the_documented_lengths(
    owner: ids.WorkerID, number: int, index: int
) -> None:
    assert len(ids.task_id(owner, number)) == ids.TASK_ID_BYTES
    assert len(ids.object_id(owner, number, index)) == ids.OBJECT_ID_BYTES


def test_new_ids_have_their_length_and_are_all_different() -> None:
    makers = {
        ids.new_cluster_id: ids.CLUSTER_ID_BYTES,
        ids.new_job_id: ids.JOB_ID_BYTES,
        ids.new_node_id: ids.NODE_ID_BYTES,
        ids.new_worker_id: ids.WORKER_ID_BYTES,
        ids.new_lease_id: ids.LEASE_ID_BYTES,
    }
    for make, size in makers.items():
        made: set[bytes] = {make() for _ in range(100)}
        assert {len(one) for one in made} == {size}
        assert len(made) == 100, "random ids must not repeat, not even after a fork"


def test_object_ids_of_one_task_sort_by_index() -> None:
    owner = ids.new_worker_id()
    made = [ids.object_id(owner, 1, index) for index in (0, 1, 255, 256, 65_536)]
    assert made == sorted(made)
