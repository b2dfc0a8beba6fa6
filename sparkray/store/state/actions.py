"""What the accounting of a store asks its caller to do.  Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Grant:
    """A create has its room: answer it.  The file is to be made if ``fresh``."""

    ticket: int
    segment: int
    capacity_bytes: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pin holds: answer it.  The object is in a segment, or in a ``file`` on disk."""

    ticket: int
    segment: int
    size_bytes: int
    file: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A create or pin will never be served: answer it with the reason."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a segment.  ``unmapped``: no process can still be using it."""

    segment: int
    capacity_bytes: int
    unmapped: bool


@dataclass(frozen=True, slots=True)
class Spill:
    """Copy a segment to a file, then call `spilled` or `spill_failed`."""

    object_id: bytes
    segment: int
    size_bytes: int
    file: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy a file to a segment, then call `restored` or `restore_failed`."""

    ticket: int
    segment: int
    capacity_bytes: int
    fresh: bool
    size_bytes: int
    file: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Check a file that is to be read where it is, then call as for `Restore`."""

    ticket: int
    size_bytes: int
    file: int


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Delete the file of a spilled object."""

    file: int


Action: TypeAlias = (
    Grant | Pinned | Refused | Remove | Spill | Restore | Verify | DeleteFile
)
