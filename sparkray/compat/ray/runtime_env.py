"""`ray.runtime_env`: runtime environments as objects.  Each is a dictionary, checked
where it is used."""

from __future__ import annotations

from typing import Any

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]


class RuntimeEnv(dict[str, Any]):
    """A dict of what was given, as in ``RuntimeEnv(working_dir="project")``."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            {name: value for name, value in given.items() if value is not None}
        )


class RuntimeEnvConfig(dict[str, Any]):
    """How an environment is set up.

    Args:
        setup_timeout_seconds: -1 for no limit.
        eager_install: without effect: set-up begins with the job, or the first call.
    """

    def __init__(
        self, setup_timeout_seconds: float = 600, eager_install: bool = True
    ) -> None:
        super().__init__(setup_timeout_seconds=setup_timeout_seconds)
