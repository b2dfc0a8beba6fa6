"""dask.distributed on a local cluster of single-threaded processes, no dashboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
from distributed import Client, LocalCluster, worker_client

from peers import Basic
from tasks import empty


class Peer(Basic):
    def start(self, workers: int) -> None:
        dask.config.set({"distributed.worker.daemon": False})
        self._cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs="ERROR",
        )
        self._client = Client(self._cluster)

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        submit = self._client.submit
        futures = [submit(function, *args, pure=False) for args in arguments]
        results: list[Any] = self._client.gather(futures)
        return results

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._client.submit(function, *args, pure=False).result()

    def nested(self, outer: int, inner: int) -> int:
        return sum(self.run(_fan_out, [(inner,)] * outer))

    def put(self, value: Any) -> Any:
        return self._client.scatter(value, hash=False)

    def get(self, reference: Any) -> Any:
        return reference.result()

    def joblib_backend(self) -> str:
        return "dask"

    def stop(self) -> None:
        self._client.close()
        self._cluster.close()


def _fan_out(inner: int) -> int:
    with worker_client() as client:
        futures = [client.submit(empty, pure=False) for _ in range(inner)]
        return len(client.gather(futures))
