"""How frames are cut, and who gets which part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkray.spark.state.dispatch import (
    MAX_SLICE_BYTES,
    BlockFacts,
    Dispatcher,
    Slice,
    cut,
)

MB = 1024 * 1024
BLOCKS = st.lists(
    st.builds(
        BlockFacts,
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 100_000),
        st.integers(0, 200 * MB),
    ),
    max_size=8,
)


@given(BLOCKS, st.none() | st.integers(1, 5000), st.integers(0, 16))
def test_slices_are_whole_batches_and_cover_each_block_in_order(
    blocks: list[BlockFacts], batch_size: int | None, workers: int
) -> None:
    slices = cut(blocks, batch_size, workers)
    for number, block in enumerate(blocks):
        mine = [one for one in slices if one.block == number]
        assert [one.place for one in mine] == list(range(len(mine)))
        ends = [0, *(one.stop for one in mine)]
        assert [one.start for one in mine] == ends[:-1] and ends[-1] == block.rows
        assert all(one.start < one.stop for one in mine)
        if batch_size is None:
            assert len(mine) == min(1, block.rows)
        else:
            assert all(one.start % batch_size == 0 for one in mine)


def test_one_large_block_among_small_ones_keeps_all_workers_busy() -> None:
    blocks = [BlockFacts("a", 950_000, 95 * MB), BlockFacts("b", 50_000, 5 * MB)]
    slices = cut(blocks, 1000, workers=4)
    assert sum(one.block == 0 for one in slices) >= 12
    assert max(one.stop - one.start for one in slices) * 100 <= MAX_SLICE_BYTES


def test_small_frames_are_cut_for_all_workers_but_not_to_pieces() -> None:
    """A row may take long, however small it is."""
    slices = cut([BlockFacts("a", 10_000, 1000)], 10, workers=8)
    assert 4 * 8 <= len(slices) <= 5 * 8
    assert len(cut([BlockFacts("a", 3, 100)], 1, workers=8)) == 3


def test_a_batch_larger_than_the_goal_is_a_slice_of_its_own() -> None:
    slices = cut([BlockFacts("a", 100, 1000 * MB)], 40, workers=1)
    assert [(one.start, one.stop) for one in slices] == [(0, 40), (40, 80), (80, 100)]


@given(BLOCKS, st.lists(st.sampled_from(["a", "b", "c", "elsewhere"]), max_size=200))
def test_every_slice_is_taken_once_and_at_home_while_there_are_any(
    blocks: list[BlockFacts], askers: list[str]
) -> None:
    slices = cut(blocks, 100, workers=2)[:100]
    dispatcher, left = Dispatcher(slices), set(slices)
    taken: list[Slice] = []
    for asker in [*askers, *["elsewhere"] * len(slices)]:
        one = dispatcher.take(asker)
        if one is None:
            assert not left
            continue
        assert one.node_id == asker or all(two.node_id != asker for two in left)
        left.remove(one)
        taken.append(one)
    assert len(taken) == len(slices) and not left
