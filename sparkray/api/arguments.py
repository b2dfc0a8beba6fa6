"""The arguments of `init`: checked, and compared when `init` runs again.  Pure."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from sparkray import labels
from sparkray import resources as resources_
from sparkray.api import options, runtime_env

_OWN = ("num_cpus", "num_gpus", "resources", "object_store_memory", "labels")
_MIN_STORE_BYTES = 1 << 20
_SPARK_ONLY = "an option of sparkray.spark.start_cluster(spark, ...)"
_P = ParamSpec("_P")
_R = TypeVar("_R")


def names_checked(
    elsewhere: Callable[[], frozenset[str]],
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function name the nearest right keyword when it is given a wrong one.

    Args:
        elsewhere: returns the options that only a cluster on Spark has.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = frozenset(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in kwargs:
                if name not in known:
                    raise TypeError(unknown_name(name, known, elsewhere()))
            return function(*args, **kwargs)

        return checked

    return decorate


def unknown_name(name: str, known: frozenset[str], spark_only: frozenset[str]) -> str:
    """Say that ``name`` is no argument of `init`, and which may be meant."""
    if name in spark_only:
        return f"init() has no argument {name!r}: that is {_SPARK_ONLY}"
    near = get_close_matches(name, known | spark_only, 1)
    hint = ""
    if near:
        hint = f": did you mean {near[0]!r}"
        hint += f", {_SPARK_ONLY}?" if near[0] in spark_only else "?"
    return f"init() has no argument {name!r}{hint} (it has {', '.join(sorted(known))})"


@dataclass(frozen=True)
class InitArguments:
    """What `init` was given; None where nothing was."""

    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    object_store_memory: int | None = None
    labels: Mapping[str, str] | None = None
    namespace: str | None = None
    runtime_env: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Refuse what can be no argument.

        Raises:
            TypeError, ValueError: says which argument, and what it may be.
        """
        for name in ("address", "namespace"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise TypeError(f"{name} must be text, not {value!r}")
        for name in ("num_cpus", "num_gpus", "resources"):
            options.check({name: getattr(self, name)})
        for name in self.resources or ():
            if name == resources_.OBJECT_STORE_MEMORY or name.startswith("node:"):
                raise ValueError(f"resources may not hold {name!r}: each node sets it")
        _check_store(self.object_store_memory)
        if self.labels is not None:
            labels.check(self.labels)
        runtime_env.normalize(self.runtime_env)

    def own_resources(self) -> list[str]:
        """Return the names of those given that describe a new cluster."""
        return [name for name in _OWN if getattr(self, name) is not None]

    def node_resources(self) -> dict[str, float]:
        """Return the resources of a new node, without its CPUs."""
        named = dict(self.resources or {})
        if self.num_gpus is not None:
            named[resources_.GPU] = self.num_gpus
        return named

    def differences(self, earlier: InitArguments) -> list[str]:
        """Say what is asked for here and was not asked for earlier."""
        return [
            f"{field.name}={asked!r} (running with {before!r})"
            for field in fields(self)
            if (asked := getattr(self, field.name)) is not None
            and asked != (before := getattr(earlier, field.name))
        ]


def check_switches(**switches: object) -> None:
    """Refuse a switch that is neither on nor off.

    Raises:
        TypeError: names it.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")


def check_token(token: object) -> None:
    """Refuse what can be no token, without showing it.

    Raises:
        TypeError: it is not text.
    """
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be text, not {type(token).__name__}")


def _check_store(size: object) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"object_store_memory must be a whole number, not {size!r}")
    if not _MIN_STORE_BYTES <= size <= resources_.LARGEST:
        raise ValueError(
            f"object_store_memory must be from {_MIN_STORE_BYTES} to"
            f" {resources_.LARGEST:.0f} bytes, not {size!s:.40}"
        )
