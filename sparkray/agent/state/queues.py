"""Waiting lease requests and whose turn it is.  Pure.

    job (by turns) -> depth (deepest first) -> shape (by turns) -> holder (by turns)

Jobs come before depth, so that no job waits for ever behind the nested tasks of
another; within a job the deepest come first, so that what was begun is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkray.labels import Selector
from sparkray.protocol.messages import LeaseSpec
from sparkray.resources import Vector


class Shape(NamedTuple):
    """What makes two requests of one job interchangeable.  Hashable."""

    job_id: bytes
    depth: int
    runtime_env: str
    resources: tuple[tuple[str, int], ...]
    strategy: tuple[str, bytes, bool]
    bundle: tuple[bytes, int] = (b"", -1)  #: placement group and index
    labels: Selector = ()
    retriable: bool = True


def shape_of(spec: LeaseSpec) -> Shape:
    strategy = spec.strategy
    return Shape(
        spec.job_id,
        spec.depth,
        spec.runtime_env,
        tuple(sorted(spec.resources.items())),
        (strategy.kind, strategy.node_id, strategy.soft),
        (strategy.group_id, strategy.bundle),
        strategy.labels,
        spec.retriable,
    )


@dataclass(slots=True, eq=False)
class Request:
    """A runtime's wish for up to ``count`` workers."""

    request_id: int
    holder: bytes
    spec: LeaseSpec
    count: int
    arrived: float
    foreign: bool  #: sent by another agent: stays here
    shape: Shape = field(init=False)
    resources: Vector = field(init=False)
    infeasible_since: float | None = None
    capped_since: float | None = (
        None  #: since when only the cap on processes is in the way
    )
    stay_until: float = 0.0  #: until then it is not sent to another node
    spilled: bool = False  #: asked of another node at the moment
    sent: int = 0  #: and how much of it

    def __post_init__(self) -> None:
        self.shape = shape_of(self.spec)
        self.resources = {n: u for n, u in self.spec.resources.items() if u}

    @property
    def labels(self) -> Selector:
        """What nodes must match, unless another agent has seen to that."""
        return () if self.foreign else self.spec.strategy.labels

    @property
    def is_bound(self) -> bool:
        """Whether no other node will do than one that is named, or labelled so."""
        strategy = self.spec.strategy
        named = strategy.kind == "NODE" and not strategy.soft
        return named or bool(self.labels and self.infeasible_since is not None)

    @property
    def group(self) -> bytes:
        """The placement group that it runs in, b"" outside of any."""
        return self.spec.strategy.group_id


@dataclass(slots=True, eq=False)
class ShapeQueue:
    """Requests of one shape, by holder in the order of their turns."""

    shape: Shape
    holders: dict[bytes, deque[Request]] = field(default_factory=dict)

    def head(self) -> Request:
        return next(iter(self.holders.values()))[0]

    def requests(self) -> Iterator[Request]:
        for queue in self.holders.values():
            yield from queue


class WaitingRoom:
    """All requests that wait on this node."""

    def __init__(self) -> None:
        self._jobs: dict[bytes, dict[Shape, ShapeQueue]] = {}
        self._by_id: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_id.values()))

    def get(self, request_id: int) -> Request | None:
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        self._by_id[request.request_id] = request
        shapes = self._jobs.setdefault(request.shape.job_id, {})
        queue = shapes.setdefault(request.shape, ShapeQueue(request.shape))
        queue.holders.setdefault(request.holder, deque()).append(request)

    def remove(self, request: Request) -> None:
        """Take one out.  Its holder, shape and job keep their turns."""
        del self._by_id[request.request_id]
        shapes = self._jobs[request.shape.job_id]
        queue = shapes[request.shape]
        line = queue.holders[request.holder]
        line.remove(request)
        if not line:
            del queue.holders[request.holder]
        if not queue.holders:
            del shapes[request.shape]
        if not shapes:
            del self._jobs[request.shape.job_id]

    def jobs(self) -> list[list[ShapeQueue]]:
        """Return each job's queues, deepest first; jobs and queues by their turns."""
        return [
            sorted(shapes.values(), key=lambda queue: -queue.shape.depth)
            for shapes in self._jobs.values()
        ]

    def queues(self) -> Iterator[ShapeQueue]:
        for shapes in self._jobs.values():
            yield from shapes.values()

    def demand(self) -> list[tuple[Vector, int]]:
        """Return how much waits for room on any node, by resources.

        What was sent to another node waits there.
        """
        counts: dict[tuple[tuple[str, int], ...], int] = {}
        for request in self._by_id.values():
            left = request.count - request.sent if request.spilled else request.count
            if left > 0 and not request.group and not request.is_bound:
                resources = request.shape.resources
                counts[resources] = counts.get(resources, 0) + left
        return [(dict(resources), count) for resources, count in counts.items()]

    def deeper_than(self, request: Request) -> bool:
        """Tell if deeper requests of the same job wait."""
        shapes = self._jobs.get(request.shape.job_id, {})
        return any(shape.depth > request.shape.depth for shape in shapes)

    def took_turn(self, shape: Shape, holder: bytes) -> None:
        """Put who was just served, job, shape and holder, at the end of the line."""
        shapes = self._jobs.get(shape.job_id)
        if shapes is None:
            return
        self._jobs[shape.job_id] = self._jobs.pop(shape.job_id)
        queue = shapes.get(shape)
        if queue is None:
            return
        shapes[shape] = shapes.pop(shape)
        if holder in queue.holders:
            queue.holders[holder] = queue.holders.pop(holder)
