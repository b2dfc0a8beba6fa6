"""What an archive of a runtime environment may hold; asked before it is sent and before
it is unpacked.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from zipfile import ZipInfo

#: What is larger when unpacked is refused.
MAX_UNPACKED_BYTES: Final = 8 << 30
#: An archive with more members is refused, and a directory with more in it.
MAX_MEMBERS: Final = 250_000


def check_members(members: Iterable[ZipInfo]) -> None:
    """Refuse what would be written elsewhere, or would fill the disk.

    Raises:
        ValueError: says which member, or how much it is.
    """
    size_bytes = 0
    for count, member in enumerate(members, 1):
        if _leads_out(member.filename):
            raise ValueError(f"{member.filename!r} lies outside of the archive")
        size_bytes += member.file_size
        if size_bytes > MAX_UNPACKED_BYTES:
            limit_mib = MAX_UNPACKED_BYTES >> 20
            raise ValueError(f"unpacked it takes more than {limit_mib} MiB")
        if count > MAX_MEMBERS:
            raise ValueError(f"it has more than {MAX_MEMBERS} members")


def _leads_out(name: str) -> bool:
    name = name.replace("\\", "/")
    return name.startswith("/") or ".." in name.split("/")
