"""Why a value cannot be sent: looks into it without sending it anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TextIO

from sparkray.store.explain import own_name, way_to_unpicklable

__all__ = ["FailureTuple", "inspect_serializability"]


@dataclass(frozen=True, eq=False)
class FailureTuple:
    """What cannot be pickled.

    Attributes:
        obj: the innermost part that fails.
        name: what its parent calls it, e.g. ``closure variable 'lock'``.
        parent: what it was found in; None if it is the inspected value itself.
        error: what pickling it raises.
        path: the names from the inspected value to it.
    """

    obj: Any
    name: str
    parent: Any
    error: BaseException
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' -> '.join(self.path)}: {self.error}"


def inspect_serializability(
    obj: Any, name: str | None = None, *, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Find out whether a value could be an argument, a result or a function of a task.

    Args:
        obj: it is pickled, perhaps many times, and sent nowhere.
        name: what to call it in the answer; default: its own name.
        print_file: where to write the answer as well, e.g. ``sys.stderr``.

    Returns:
        whether it can be sent, and what cannot (nothing, or the first part found).
    """
    name = name or own_name(obj)
    way = way_to_unpicklable(obj, name)
    failures: set[FailureTuple] = set()
    if way:
        parent = way[-2][1] if len(way) > 1 else None
        path = tuple(step for step, _, _ in way)
        failures.add(FailureTuple(way[-1][1], path[-1], parent, way[-1][2], path))
    if print_file is not None:
        lines = [str(failure) for failure in failures]
        print(*lines or [f"{name} can be sent"], sep="\n", file=print_file)
    return not failures, failures
