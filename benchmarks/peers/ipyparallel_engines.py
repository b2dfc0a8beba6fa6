"""ipyparallel with local engines behind its load-balanced view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import ipyparallel

from peers import Basic


class Peer(Basic):
    def start(self, workers: int) -> None:
        self._cluster = ipyparallel.Cluster(n=workers, log_level=logging.ERROR)
        self._client = self._cluster.start_and_connect_sync()
        self._view = self._client.load_balanced_view()

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        results = [self._view.apply_async(function, *args) for args in arguments]
        return [result.get() for result in results]

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._view.apply_sync(function, *args)

    def stop(self) -> None:
        self._client.close()
        self._cluster.stop_cluster_sync()
