"""Packages of runtime environments stay as long as a job uses them.  Pure."""

from __future__ import annotations

from collections.abc import Callable

from sparkray.head.state.kv import KVTable
from sparkray.protocol.environments import NAMESPACE, packages_in, use_key, use_of


def note_use(kv: KVTable, job_id: bytes, *runtime_envs: str) -> None:
    """Keep what these environments need for a job that does not say so itself."""
    for name in {name for env in runtime_envs for name in packages_in(env)}:
        kv.put(NAMESPACE, use_key(name, job_id), b"", overwrite=True)


def drop_unused(kv: KVTable, is_alive: Callable[[bytes], bool]) -> None:
    """Forget the uses of jobs that are not alive, and packages without any use."""
    used, keys = set(), kv.keys(NAMESPACE, b"")
    for key in keys:
        name, job_id = use_of(key)
        if job_id is None:
            continue
        if is_alive(job_id):
            used.add(name)
        else:
            kv.delete(NAMESPACE, key)
    for key in keys:
        name, job_id = use_of(key)
        if job_id is None and name not in used:
            kv.delete(NAMESPACE, key)
