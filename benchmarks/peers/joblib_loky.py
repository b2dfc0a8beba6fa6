"""joblib on loky, one task a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor

from peers import Basic


class Peer(Basic):
    def start(self, workers: int) -> None:
        self._parallel = joblib.Parallel(
            n_jobs=workers, backend="loky", batch_size=1, pre_dispatch="all"
        )
        self._parallel.__enter__()

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        call = joblib.delayed(function)
        results: list[Any] = self._parallel(call(*args) for args in arguments)
        return results

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.run(function, [args])[0]

    def joblib_backend(self) -> str:
        return "loky"

    def stop(self) -> None:
        self._parallel.__exit__(None, None, None)
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
