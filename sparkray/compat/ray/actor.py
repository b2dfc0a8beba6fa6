"""`ray.actor`."""

from __future__ import annotations

from typing import Any

from sparkray import actor
from sparkray.actor import ActorHandle, ActorMethod, exit_actor
from sparkray.compat.ray._options import translated

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]


class ActorClass(actor.ActorClass):
    """An actor class that takes Ray's options as well."""

    def options(self, **given: Any) -> actor.ActorClass:
        return super().options(**translated(given))
