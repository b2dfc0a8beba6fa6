"""How an actor ends itself."""

from __future__ import annotations

from typing import NoReturn

from sparkray.runtime.context import running


class ActorExit(BaseException):
    """Raised by `exit_actor` through the actor's method; no ``except Exception`` stops
    it."""


def exit_actor() -> NoReturn:
    """End the actor that calls this, for good: it is not restarted.

    The call that does it, and all that wait, fail with `ActorDiedError`; those that run
    beside it end first.  Then what was given to `atexit` runs.

    Raises:
        TypeError: not inside an actor.
    """
    if running.actor is None:
        raise TypeError("exit_actor ends an actor; this is not in one")
    raise ActorExit
