"""`ray.util.joblib`; the backend answers to ``"ray"``, too."""

from __future__ import annotations

from typing import Any

from sparkray.util.joblib import SparkrayBackend, register_sparkray

__all__ = ["register_ray", "register_sparkray"]


def register_ray() -> None:
    """Make the backend known to joblib, as ``"ray"`` and as ``"sparkray"``."""
    import joblib

    register_sparkray()
    joblib.register_parallel_backend("ray", _backend)


def _backend(
    ray_remote_args: dict[str, Any] | None = None, **given: Any
) -> SparkrayBackend:
    return SparkrayBackend(**given, **(ray_remote_args or {}))
