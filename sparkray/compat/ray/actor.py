"""`ray.actor`."""

from sparkray.actor import ActorClass, ActorHandle, ActorMethod, exit_actor

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]
