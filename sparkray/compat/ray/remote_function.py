"""`ray.remote_function`, and the function `ray.remote`."""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar

import sparkray
from sparkray.compat.ray._options import translated
from sparkray.compat.ray.actor import ActorClass

__all__ = ["RemoteFunction"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RemoteFunction(sparkray.RemoteFunction[_P, _R]):
    """A remote function that takes Ray's options as well."""

    def options(self, **given: Any) -> sparkray.RemoteFunction[_P, _R]:
        return super().options(**translated(given))


def remote(*positional: Any, **given: Any) -> Any:
    """Do as `sparkray.remote`; take Ray's options as well."""
    given = translated(given)
    decorate = sparkray.remote(*positional, **given)
    if not positional:
        return lambda target: _ours(decorate(target), target, given)
    return _ours(decorate, positional[0], given)


def _ours(made: Any, target: Any, given: dict[str, Any]) -> Any:
    """Return what takes Ray's options later, too."""
    is_function = isinstance(made, sparkray.RemoteFunction)
    return (RemoteFunction if is_function else ActorClass)(target, given)


def method(**given: Any) -> Any:
    """Do as `sparkray.method`; take Ray's options as well."""
    return sparkray.method(**translated(given))
