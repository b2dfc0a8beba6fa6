"""Functions of `ray.util` whose arguments differ from those of `sparkray.util`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import sparkray
from sparkray.util import as_completed as _as_completed
from sparkray.util.serialization import FailureTuple
from sparkray.util.serialization import inspect_serializability as _inspect

__all__ = [
    "as_completed",
    "get_node_ip_address",
    "inspect_serializability",
    "map_unordered",
]


def as_completed(
    refs: Iterable[Any],
    *,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> Iterator[Any]:
    """Yield the results of refs as they become ready.

    Args:
        chunk_size: checked, and without effect: each is yielded as soon as it is there.
        yield_obj_refs: yield the refs themselves.
        timeout: seconds that the whole iteration may wait; None: no limit.
        fetch_local: without effect.

    Raises:
        TimeoutError: time ran out.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be 1 or more, not {chunk_size}")
    ready = _as_completed(refs, timeout=timeout)
    return ready if yield_obj_refs else map(sparkray.get, ready)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """Yield the results of ``fn.remote(item)`` as they become ready.

    Args:
        fn: a remote function.
        backpressure_size: so many calls run or wait at a time; None: all at once.
        chunk_size: checked, and without effect.
        yield_obj_refs: yield the refs themselves.

    Raises:
        ValueError: a size is below 1.
    """
    if backpressure_size is None:
        backpressure_size = sys.maxsize
    if backpressure_size < 1 or chunk_size < 1:
        raise ValueError("backpressure_size and chunk_size must be 1 or more")
    return _map_unordered(fn, iter(items), backpressure_size, yield_obj_refs)


def _map_unordered(
    fn: Any, items: Iterator[Any], at_a_time: int, yield_obj_refs: bool
) -> Iterator[Any]:
    running: list[Any] = []
    is_more = True
    while is_more or running:
        while is_more and len(running) < at_a_time:
            try:
                running.append(fn.remote(next(items)))
            except StopIteration:
                is_more = False
        if not running:
            return
        ready, running = sparkray.wait(running, num_returns=1)
        yield ready[0] if yield_obj_refs else sparkray.get(ready[0])


def inspect_serializability(
    base_obj: Any,
    name: str | None = None,
    depth: int = 3,
    print_file: TextIO | None = None,
) -> tuple[bool, set[FailureTuple]]:
    """Do as `sparkray.util.serialization.inspect_serializability`, and print the
    answer, by default where `print` does.

    Args:
        depth: without effect: the search goes as deep as it has to.
    """
    return _inspect(base_obj, name, print_file=print_file or sys.stdout)


def get_node_ip_address() -> str:
    """Return the address at which other nodes reach this one."""
    here = sparkray.get_runtime_context().get_node_id()
    node = next(node for node in sparkray.nodes() if node["NodeID"] == here)
    return str(node["NodeManagerAddress"])
