"""Ray without its dashboard."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

from tasks import Counter, empty


class Peer:
    def start(self, workers: int) -> None:
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=2 << 30,
        )
        self._remotes: dict[Callable[..., Any], Any] = {}

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        remote = self._remote(function).remote
        results: list[Any] = ray.get([remote(*args) for args in arguments])
        return results

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return ray.get(self._remote(function).remote(*args))

    def nested(self, outer: int, inner: int) -> int:
        return sum(self.run(_fan_out, [(inner,)] * outer))

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, reference: Any) -> Any:
        return ray.get(reference)

    def actors(self, count: int) -> list[Any]:
        made = [_Counter.remote() for _ in range(count)]
        ray.get([actor.add.remote() for actor in made])
        return made

    def call(self, actor: Any, count: int) -> None:
        ray.get([actor.add.remote() for _ in range(count)])

    def joblib_backend(self) -> str:
        from ray.util.joblib import register_ray

        register_ray()
        return "ray"

    def stop(self) -> None:
        ray.shutdown()

    def _remote(self, function: Callable[..., Any]) -> Any:
        if function not in self._remotes:
            self._remotes[function] = ray.remote(function)
        return self._remotes[function]


def _fan_out(inner: int) -> int:
    return len(ray.get([_empty.remote() for _ in range(inner)]))


_empty: Any = ray.remote(empty)
_Counter: Any = ray.remote(num_cpus=0)(Counter)
