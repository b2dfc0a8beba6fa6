"""What a placement group is to those who use it; see `api.placement_group`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sparkray.exceptions import PlacementGroupRemovedError
from sparkray.protocol import placement as p
from sparkray.protocol.messages import Strategy
from sparkray.runtime import core
from sparkray.runtime.functions import TaskTemplate
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.waiter import LONGEST_S

#: How long one question to the head may take to be answered.
ASK_S: Final = 10.0


class PlacementGroup:
    """A placement group, by its id.  Can be sent, stored and compared.

    Args:
        id: binary; ``id.hex()`` is what the table and the runtime context show.
        bundles: what was asked for.
        cluster: where it is; b"" if unknown.
    """

    def __init__(
        self, id: bytes, bundles: Sequence[Mapping[str, float]], cluster: bytes = b""
    ) -> None:
        self.id = id
        self._cluster = cluster
        self._bundles = [dict(bundle) for bundle in bundles]
        self._template: TaskTemplate | None = None

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """What each bundle reserves."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def bundle_count(self) -> int:
        return len(self._bundles)

    @property
    def is_empty(self) -> bool:
        """Whether this stands for no group; never so here."""
        return False

    def check_cluster(self, runtime: core.Runtime) -> None:
        """Raise `PlacementGroupRemovedError` if it was a group of another cluster."""
        if self._cluster not in (b"", runtime.attached.cluster_id):
            raise PlacementGroupRemovedError(
                f"placement group {self.id.hex()} was in a cluster that this process"
                " has left, or never belonged to"
            )

    def ready(self) -> ObjectRef:
        """Return a ref whose object, this group, exists once all is reserved.

        `get` of it raises `PlacementGroupRemovedError` if the group is removed first.

        Raises:
            PlacementGroupRemovedError: the group was in another cluster.
        """
        runtime = core.current()
        self.check_cluster(runtime)
        if self._template is None:
            self._template = TaskTemplate(
                _when_placed,
                name="placement_group.ready",
                num_returns=1,
                resources={},
                runtime_env="",
                strategy=Strategy("GROUP", group_id=self.id),
                max_retries=3,
                retry_exceptions=False,
                max_calls=0,
                backpressure=0,
            )
        ref = runtime.submit(self._template, (self,), {})
        assert isinstance(ref, ObjectRef)
        return ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until all is reserved; return whether it is.

        Raises:
            TypeError, ValueError: ``timeout_seconds`` is no time.
            PlacementGroupRemovedError: the group was in another cluster.
        """
        deadline = time.monotonic() + _seconds(timeout_seconds)
        runtime = core.current()
        self.check_cluster(runtime)
        while True:
            left_s = deadline - time.monotonic()
            request = p.WaitPlacementGroup(self.id, max(0.0, min(ASK_S, left_s)))
            row = runtime.head_call("WaitPlacementGroup", request)
            if row.state == p.CREATED:
                return True
            if row.state == p.REMOVED or left_s <= ASK_S:
                return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self._bundles})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacementGroup, (self.id, self._bundles, self._cluster)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"timeout_seconds must be a number, not {value!r}")
    if not value >= 0:  # NaN neither
        raise ValueError(f"timeout_seconds must be 0 or more, not {value!r}")
    return min(value, LONGEST_S)


def _when_placed(group: PlacementGroup) -> PlacementGroup:
    """Runs inside the group, so it runs once that is there."""
    return group
