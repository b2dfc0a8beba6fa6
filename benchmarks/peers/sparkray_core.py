"""sparkray, through its public names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sparkray
from tasks import Counter, empty


class Peer:
    def start(self, workers: int) -> None:
        sparkray.init(num_cpus=workers, log_to_driver=False)
        self._remotes: dict[Callable[..., Any], Any] = {}

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        remote = self._remote(function).remote
        results: list[Any] = sparkray.get([remote(*args) for args in arguments])
        return results

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return sparkray.get(self._remote(function).remote(*args))

    def nested(self, outer: int, inner: int) -> int:
        return sum(self.run(_fan_out, [(inner,)] * outer))

    def put(self, value: Any) -> Any:
        return sparkray.put(value)

    def get(self, reference: Any) -> Any:
        return sparkray.get(reference)

    def actors(self, count: int) -> list[Any]:
        made = [_Counter.remote() for _ in range(count)]
        sparkray.get([actor.add.remote() for actor in made])
        return made

    def call(self, actor: Any, count: int) -> None:
        sparkray.get([actor.add.remote() for _ in range(count)])

    def joblib_backend(self) -> str:
        from sparkray.util.joblib import register_sparkray

        register_sparkray()
        return "sparkray"

    def stop(self) -> None:
        sparkray.shutdown()

    def _remote(self, function: Callable[..., Any]) -> Any:
        if function not in self._remotes:
            self._remotes[function] = sparkray.remote(function)
        return self._remotes[function]


def _fan_out(inner: int) -> int:
    return len(sparkray.get([_empty.remote() for _ in range(inner)]))


_empty: Any = sparkray.remote(empty)
_Counter: Any = sparkray.remote(num_cpus=0)(Counter)
