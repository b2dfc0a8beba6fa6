"""Names around actors, for use inside of them."""

from sparkray.runtime.actor_exit import exit_actor

__all__ = ["exit_actor"]
