"""What this host has: CPUs, memory, room for shared memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import psutil

_DEVICES = Path("/dev")
_NO_DEVICE = ("", "-1", "NoDevFiles", "none", "void")
_CGROUP = Path("/sys/fs/cgroup")
#: Files of control groups, version 2 and 1: limit and use, in bytes.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_USES = ("memory.current", "memory/memory.usage_in_bytes")
_CACHES = ("memory.stat", "memory/memory.stat")


def cpu_count() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def gpu_ids(environment: Mapping[str, str], devices: Path = _DEVICES) -> list[str]:
    """Return the GPUs that a process with this environment may use.

    ``CUDA_VISIBLE_DEVICES`` says which; without it, all whose device files are there,
    counted from 0 as CUDA does: a container may have nothing but ``/dev/nvidia3``.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        files = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia*")]
        return [str(n) for n in range(sum(file.isdecimal() for file in files))]
    ids = [id.strip() for id in named.split(",")]
    # CUDA itself takes what stands before the first that is no device.
    there = itertools.takewhile(lambda id: id not in _NO_DEVICE, ids)
    return list(dict.fromkeys(there))  # one that is named twice is still one


def memory_total_bytes() -> int:
    """Return the memory of the host, or what the control group allows if less."""
    total: int = psutil.virtual_memory().total
    limit = _cgroup_limit()
    return total if limit is None else min(total, limit)


def memory_used_fraction() -> float:
    """Return how full memory is, whichever is fuller: host or control group.

    File caches that the kernel can drop do not count as used.
    """
    host = psutil.virtual_memory()
    used = 1 - host.available / host.total
    limit, current = _cgroup_limit(), _read(_USES)
    if limit and current is not None and limit < host.total:
        used = max(used, (current - _dropable()) / limit)
    return float(used)


def _cgroup_limit() -> int | None:
    limit = _read(_LIMITS)
    return None if limit is None or limit > 1 << 60 else limit


def _dropable() -> int:
    for name in _CACHES:
        with contextlib.suppress(OSError, ValueError):
            for line in (_CGROUP / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key in ("inactive_file", "total_inactive_file"):
                    return int(value)
    return 0


def _read(names: tuple[str, ...]) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            return int((_CGROUP / name).read_text())
    return None


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
