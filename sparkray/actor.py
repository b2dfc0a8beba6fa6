"""Names around actors: for annotations, and for use inside of them."""

from sparkray.api.actor import ActorClass, ActorHandle, ActorMethod
from sparkray.runtime.actor_exit import exit_actor

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]
