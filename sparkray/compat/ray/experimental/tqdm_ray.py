"""`ray.experimental.tqdm_ray`: progress from the driver and from inside of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkray.util import progress

__all__ = ["safe_print", "tqdm"]


def safe_print(*args: Any, **kwargs: Any) -> None:
    """Do as `print`."""
    print(*args, **kwargs)


class tqdm(progress.tqdm):
    """Do as `sparkray.util.progress.tqdm`; take Ray's arguments as well.

    Args:
        position, flush_interval_s: without effect.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: float | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        super().__init__(iterable, desc or "", total, unit=unit or "it")

    def refresh(self) -> None:
        """Without effect: it is drawn by itself."""
