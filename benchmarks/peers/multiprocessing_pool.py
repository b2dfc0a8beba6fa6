"""The standard library's process pool, one task a message."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from peers import Basic


class Peer(Basic):
    def start(self, workers: int) -> None:
        self._pool = multiprocessing.get_context("fork").Pool(workers)

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        return self._pool.starmap(function, arguments, chunksize=1)

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.apply(function, args)

    def stop(self) -> None:
        self._pool.terminate()
        self._pool.join()
