"""Which versions work together: the same sparkray, the same minor version of Python.

Pickled code does not survive another minor version of Python; another patch release
mostly makes no difference and is worth one line.
"""

from __future__ import annotations

import platform

import msgspec

import sparkray


class Versions(msgspec.Struct, frozen=True):
    """What a process runs: texts such as "3.11.9" and "0.1.0"."""

    python: str
    sparkray: str

    def __str__(self) -> str:
        return f"Python {self.python} and sparkray {self.sparkray}"

    def fits(self, other: Versions) -> bool:
        """Tell whether processes of these versions may be in one cluster."""
        mine, theirs = (_minor(each.python) for each in (self, other))
        return mine == theirs and self.sparkray == other.sparkray


def own_versions() -> Versions:
    """Return what this process runs."""
    return Versions(platform.python_version(), sparkray.__version__)


def difference(one: str, versions: Versions, other: str, others: Versions) -> str:
    """Return a line that names both, "" if there is nothing to tell.

    Args:
        one, other: who runs them, for the line.
    """
    if versions == others:
        return ""
    if versions.fits(others):
        return (
            f"{one} has Python {versions.python}, {other} Python {others.python}: fine"
            " as a rule, as only the patch release differs"
        )
    return f"{one} has {versions}, {other} {others}: install the same versions"


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
