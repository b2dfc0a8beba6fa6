"""Which requests will never be served, and why.  Pure."""

from __future__ import annotations

from typing import Final

from sparkray import labels
from sparkray.agent.state.bundles import Bundles
from sparkray.agent.state.events import Fail, Tell
from sparkray.agent.state.nodes import ClusterMap
from sparkray.agent.state.queues import Request, Shape
from sparkray.agent.state.workers import WorkerTable
from sparkray.resources import (
    TELL_INFEASIBLE_AFTER_S,
    describe,
    fits,
    infeasible_text,
    remember,
)

#: How much later than to the head a node may be known to other nodes.
NEWS_S: Final = 2.0


class Judge:
    """Looks at one request at a time.

    Args:
        cluster, bundles, workers: where it could be served.
        timeout_s: how long a request waits for a node that could serve it.
    """

    def __init__(
        self,
        cluster: ClusterMap,
        bundles: Bundles,
        workers: WorkerTable,
        timeout_s: float,
    ) -> None:
        self._cluster, self._bundles, self._workers = cluster, bundles, workers
        self._timeout_s = timeout_s
        self._told: dict[Shape, None] = {}  #: the oldest first

    def worth_telling(self, request: Request, now: float) -> Tell | None:
        """Return a line on a request that waits for a node which is not there; one a
        shape."""
        since = request.infeasible_since
        if since is None or now - since < TELL_INFEASIBLE_AFTER_S or request.group:
            return None
        if request.foreign or request.shape in self._told:
            return None
        remember(self._told, request.shape)
        wanted, largest, hint = self._unschedulable(request, "").args
        left_s = since + self._timeout_s - now
        text = infeasible_text(wanted, largest, hint, left_s)
        return Tell(request.spec.job_id, text)

    def hopeless(self, request: Request, now: float, moved: float) -> Fail | None:
        """Return the failure of a request that will never be served.

        Args:
            moved: when anything last moved on this node.
        """
        strategy = request.spec.strategy
        if request.group:
            return self._hopeless_in_group(request, now, moved)
        if (
            strategy.kind == "NODE"
            and not strategy.soft
            and not request.foreign
            and self._cluster.get(strategy.node_id) is None
        ):
            since = request.infeasible_since = request.infeasible_since or now
            if strategy.node_id not in self._cluster.lost and now - since < NEWS_S:
                return None  # news of it may be on their way
            return self._unschedulable(
                request,
                f"it is bound to node {strategy.node_id.hex()}, dead or unknown",
            )
        if self._feasible(request):
            request.infeasible_since = None
        elif request.infeasible_since is None:
            request.infeasible_since = now
        elif now - request.infeasible_since >= self._timeout_s:
            return self._unschedulable(request, "")
        return self._out_of_processes(request, now, moved)

    def _hopeless_in_group(
        self, request: Request, now: float, moved: float
    ) -> Fail | None:
        if self._bundles.is_removed(request.group):
            text = f"placement group {request.group.hex()} was removed"
            return Fail(request.request_id, "PlacementGroupRemovedError", (text,))
        obstacle = None if request.foreign else self._bundles.obstacle(request)
        if obstacle is None:
            request.infeasible_since = None
        elif obstacle:
            return self._unschedulable(request, obstacle)
        elif request.infeasible_since is None:  # the head's word may be on its way
            request.infeasible_since = now
        elif now - request.infeasible_since >= self._timeout_s:
            hint = f"there is no placement group {request.group.hex()}"
            return self._unschedulable(request, hint)
        return self._out_of_processes(request, now, moved)

    def _feasible(self, request: Request) -> bool:
        strategy, needs = request.spec.strategy, request.resources
        if request.foreign:
            return fits(needs, self._cluster.own.total)
        if strategy.kind == "NODE" and not strategy.soft:
            node = self._cluster.peers.get(strategy.node_id, self._cluster.own)
            return node.could_serve(needs, request.labels)
        return self._cluster.feasible(needs, request.labels)

    def _out_of_processes(
        self, request: Request, now: float, moved: float
    ) -> Fail | None:
        since = request.capped_since
        if since is None or request.spec.depth < 1 or not self._workers.nothing_moves():
            return None
        if now - max(since, moved) < self._timeout_s:
            return None
        most = self._workers.max_workers
        return Fail(
            request.request_id,
            "UnschedulableError",
            (
                f"{describe(request.resources)} at nesting depth {request.spec.depth}",
                f"room for {most} workers at most, and all wait for nested tasks",
                "raise max_workers (SPARKRAY_MAX_WORKERS) or nest less deeply",
            ),
        )

    def _unschedulable(self, request: Request, hint: str) -> Fail:
        needs, selector = request.resources, request.labels
        wanted = describe(needs)
        if selector:
            wanted += f" where label_selector is {labels.describe(selector)}"
            hint = hint or self._unmatched(request)
        args = (wanted, self._cluster.largest(needs, selector), hint)
        return Fail(request.request_id, "UnschedulableError", args)

    def _unmatched(self, request: Request) -> str:
        """Return what is wrong with the labels, "" if nothing is."""
        strategy, selector = request.spec.strategy, request.labels
        node = self._cluster.get(strategy.node_id)
        if strategy.kind == "NODE" and not strategy.soft and node is not None:
            own = node.labels
            bound = [(f"node {strategy.node_id.hex()}, the one it is bound to,", own)]
            return "" if labels.matches(selector, own) else labels.hint(selector, bound)
        return self._cluster.unmatched(selector)
