"""`ray.util.actor_pool`."""

from sparkray.util.actor_pool import ActorPool

__all__ = ["ActorPool"]
