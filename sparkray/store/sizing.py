"""Where a store lies and how large it may be."""

from __future__ import annotations

from typing import Final

from sparkray.store.host import free_bytes, is_writable, memory_bytes

SHARED_MEMORY: Final = "/dev/shm"
#: What a store takes of the host's memory unless told otherwise.
MEMORY_SHARE: Final = 0.3
#: Shared memory with less room than this is not worth bounding a store by.
_USEFUL_BYTES: Final = 1024**3
#: What is left alone of the file system that a store lies in.
_USABLE: Final = 0.95


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
    mount = preferred.rstrip("/").rpartition("/")[0] or "/"
    room = free_bytes(mount)
    if int(room * _USABLE) >= limit_bytes and is_writable(mount):
        return preferred, ""
    return fallback, (
        f"{mount} has room for {room} bytes, but the object store is to hold"
        f" {limit_bytes}: its objects go to {fallback} on disk, which is slower. Give"
        f" {mount} more room (docker run --shm-size, an emptyDir volume with medium:"
        " Memory in Kubernetes) or ask for a smaller object_store_memory"
    )
