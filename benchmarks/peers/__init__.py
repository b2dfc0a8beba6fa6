"""One module a peer, each with a class `Peer` of the same small interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

#: Name in tables -> module.  sparkray first: the ratios refer to it.
MODULES = {
    "sparkray": "peers.sparkray_core",
    "multiprocessing": "peers.multiprocessing_pool",
    "ray": "peers.ray_core",
    "dask": "peers.dask_distributed",
    "joblib": "peers.joblib_loky",
    "ipyparallel": "peers.ipyparallel_engines",
    "spark": "peers.spark_local",
}

#: Name in tables -> what has to be importable, and what pip installs for it.
PACKAGES = {
    "sparkray": ("sparkray", ""),
    "multiprocessing": ("multiprocessing", ""),
    "ray": ("ray", "ray"),
    "dask": ("distributed", "dask[distributed]"),
    "joblib": ("joblib", "joblib"),
    "ipyparallel": ("ipyparallel", "ipyparallel"),
    "spark": ("pyspark", "pyspark"),
}


class NotOffered(Exception):
    """The peer has nothing that corresponds to this row."""


class Peer(Protocol):
    """What a row may ask of a peer.  ``start`` to ``stop`` is one life."""

    def start(self, workers: int) -> None: ...

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Submit one task for each tuple of arguments, then gather all results."""

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run one task and wait for its result."""

    def nested(self, outer: int, inner: int) -> int:
        """Run ``outer`` tasks that run ``inner`` empty tasks each; return how many ran.

        Raises:
            NotOffered: tasks cannot start tasks.
        """

    def put(self, value: Any) -> Any:
        """Store a value and return a reference.

        Raises:
            NotOffered: there is no store.
        """

    def get(self, reference: Any) -> Any: ...

    def actors(self, count: int) -> list[Any]:
        """Make actors and wait until each has answered a call.

        They take no CPU of the cluster's, and end when the list is dropped.

        Raises:
            NotOffered: there are none with processes of their own.
        """

    def call(self, actor: Any, count: int) -> None:
        """Call a method of an actor so many times, then gather all results."""

    def joblib_backend(self) -> str:
        """Return by which name joblib knows the peer.

        Raises:
            NotOffered: by none.
        """

    def stop(self) -> None: ...


class Basic:
    """What a peer without nesting, a store and actors does not offer."""

    def nested(self, outer: int, inner: int) -> int:
        raise NotOffered

    def put(self, value: Any) -> Any:
        raise NotOffered

    def get(self, reference: Any) -> Any:
        raise NotOffered

    def actors(self, count: int) -> list[Any]:
        raise NotOffered

    def call(self, actor: Any, count: int) -> None:
        raise NotOffered

    def joblib_backend(self) -> str:
        raise NotOffered


def load(name: str) -> Peer:
    return cast(Peer, importlib.import_module(MODULES[name]).Peer())
