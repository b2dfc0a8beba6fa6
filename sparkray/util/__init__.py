"""Useful things built from the public names alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import sparkray
from sparkray import list_named_actors
from sparkray.util.deadlines import deadline_after

if TYPE_CHECKING:
    from sparkray import ObjectRef
    from sparkray.util.actor_pool import ActorPool as ActorPool

#: Loaded when they are first looked at.
_SUBMODULES = frozenset(
    {
        "actor_pool",
        "exchange",
        "futures",
        "joblib",
        "placement_group",
        "progress",
        "queue",
        "scheduling_strategies",
        "serialization",
        "state",
    }
)

__all__ = ["ActorPool", "as_completed", "list_named_actors"]


def as_completed(
    refs: Iterable[ObjectRef], *, timeout: float | None = None
) -> Iterator[ObjectRef]:
    """Yield refs as their objects become ready, failed ones too.

    Args:
        refs: a ref that is there twice is yielded once.
        timeout: seconds that the whole iteration may wait; None: no limit.

    Raises:
        TimeoutError: time ran out; says how many are still missing.
    """
    pending = list(dict.fromkeys(refs))
    total = len(pending)
    deadline = deadline_after(timeout)
    while pending:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, pending = sparkray.wait(pending, num_returns=1, timeout=left_s)
        if not ready:
            raise TimeoutError(f"{len(pending)} of {total} not ready in {timeout:g} s")
        yield from ready
        if pending:
            more, pending = sparkray.wait(pending, num_returns=len(pending), timeout=0)
            yield from more


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"sparkray.util.{name}")
    if name == "ActorPool":
        from sparkray.util.actor_pool import ActorPool

        return ActorPool
    raise AttributeError(f"module 'sparkray.util' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, "ActorPool"})
