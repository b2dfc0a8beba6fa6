"""Where a store lies and how large it may be."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from sparkray.store.segment import free_bytes

SHARED_MEMORY: Final = "/dev/shm"
#: What a store takes of the host's memory unless told otherwise.
MEMORY_SHARE: Final = 0.3
#: Shared memory with less room than this is not worth bounding a store by.
_USEFUL_BYTES: Final = 1024**3
#: What is left alone of the file system that a store lies in.
_USABLE: Final = 0.95


def memory_bytes() -> int:
    """Return the memory of this host, or of this container if it has a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path("/sys/fs/cgroup", name).read_text()))
    return total


def default_limit(shared_memory: str = SHARED_MEMORY) -> int:
    """Return the size of a store that was not given one.

    30 % of memory, and no more than shared memory has room for, unless that has so
    little (64 MB in many containers) that the store will lie on disk: see
    `choose_directory`.
    """
    wanted = int(memory_bytes() * MEMORY_SHARE)
    room = int(free_bytes(shared_memory) * _USABLE)
    return min(wanted, room) if room >= min(wanted, _USEFUL_BYTES) else wanted


def choose_directory(
    preferred: str, fallback: str, limit_bytes: int
) -> tuple[str, str]:
    """Return where the segments go, and a warning ("" for none) to be shown once.

    Args:
        preferred: a directory to be made in shared memory.
        fallback: a directory to be made on disk, for when that has too little room.
        limit_bytes: size of the store.
    """
    mount = os.path.dirname(preferred.rstrip("/"))
    room = free_bytes(mount)
    if int(room * _USABLE) >= limit_bytes and os.access(mount, os.W_OK):
        return preferred, ""
    return fallback, (
        f"{mount} has room for {room} bytes, but the object store is to hold"
        f" {limit_bytes}: its objects go to {fallback} on disk, which is slower. Give"
        f" {mount} more room (docker run --shm-size, an emptyDir volume with medium:"
        " Memory in Kubernetes) or ask for a smaller object_store_memory"
    )
