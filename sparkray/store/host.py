"""What the host has: memory, and room on its file systems."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def memory_bytes() -> int:
    """Return the memory of this host, or of this container if it has a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path("/sys/fs/cgroup", name).read_text()))
    return total


def free_bytes(directory: str) -> int:
    """Return what any user may still write to the directory's file system."""
    try:
        stat = os.statvfs(directory)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def is_writable(directory: str) -> bool:
    return os.access(directory, os.W_OK)
