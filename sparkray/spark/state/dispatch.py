"""Which part of a frame is computed next, and where.  Pure.

A frame is blocks (its partitions), each in the store of one node.  A block is cut into
slices of whole batches, so that a block with most of the rows keeps more than one
worker busy.  Whoever is free takes a slice of its own node's blocks, else one from the
node that has most left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: No slice is larger than this unless one batch is.
MAX_SLICE_BYTES = 32 * 1024 * 1024
#: So many slices for each worker, if there are rows enough: the last ones end together.
SLICES_PER_WORKER = 4


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What is known of a block: where it is and how large."""

    node_id: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` (exclusive) of a block, whole batches of it.

    ``block`` and ``place`` number the blocks, and the slices of a block, in order.
    """

    block: int
    place: int
    start: int
    stop: int
    node_id: str


def cut(
    blocks: Sequence[BlockFacts], batch_size: int | None, workers: int
) -> list[Slice]:
    """Return the slices of all blocks, in order; none for a block without rows.

    Args:
        batch_size: rows of a batch; None: a block is one batch.
        workers: how many slices will be computed at once.
    """
    total_bytes = sum(block.size_bytes for block in blocks)
    share_bytes = total_bytes // (max(1, workers) * SLICES_PER_WORKER)
    goal_bytes = min(MAX_SLICE_BYTES, max(1, share_bytes))
    slices = []
    for number, block in enumerate(blocks):
        step = _rows_of_slice(block, batch_size, goal_bytes)
        for place, start in enumerate(range(0, block.rows, step)):
            stop = min(block.rows, start + step)
            slices.append(Slice(number, place, start, stop, block.node_id))
    return slices


def _rows_of_slice(block: BlockFacts, batch_size: int | None, goal_bytes: int) -> int:
    if batch_size is None:
        return max(1, block.rows)
    goal_rows = block.rows * goal_bytes // max(1, block.size_bytes)
    return max(1, goal_rows // batch_size) * batch_size


class Dispatcher:
    """What is left to do, by node."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._left: dict[str, deque[Slice]] = {}
        for one in slices:
            self._left.setdefault(one.node_id, deque()).append(one)

    def take(self, node_id: str) -> Slice | None:
        """Return the next slice for a worker on this node, None if nothing is left."""
        own = self._left.get(node_id)
        if own:
            return own.popleft()
        most = max(self._left.values(), key=len, default=None)
        return most.pop() if most else None  # its end: its own workers come last there
