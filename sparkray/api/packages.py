"""Brings what runtime environments name on this machine to the cluster.

    "/here/project"  ──pack──▶  package:HASH.zip  ──upload──▶  the head's KV

A directory is packed again only when something in it changed, and uploaded only if the
head does not have that content.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, Final

import msgspec

from sparkray.api import runtime_env
from sparkray.protocol import control
from sparkray.protocol.environments import (
    MAX_PACKAGE_BYTES,
    NAMESPACE,
    PIECE_BYTES,
    Manifest,
    address_of,
    manifest_key,
    package_of,
    packages_in,
    piece_key,
    use_key,
)
from sparkray.runtime import core

#: How many directories are remembered with what they looked like.
_KNOWN_KEPT: Final = 256
#: Deadline of one piece.
_PIECE_S: Final = 60.0

_known: OrderedDict[bytes, str] = OrderedDict()
_lock = threading.Lock()  #: guards `_known`


@dataclass
class Package:
    """Something to ship.  To be closed."""

    name: str
    make: Callable[[], IO[bytes]]
    file: IO[bytes] | None = None  #: what `make` made already

    def open(self) -> IO[bytes]:
        if self.file is None:
            self.file = self.make()
        return self.file

    def close(self) -> None:
        """Let go of the file.  Repeatable."""
        file, self.file = self.file, None
        if file is not None:
            file.close()


def pack(env: str) -> tuple[str, list[Package]]:
    """Replace paths of this machine by addresses of packages.

    Args:
        env: what `runtime_env.normalize` returned.

    Returns:
        the environment as it travels, and the packages that it needs.

    Raises:
        ValueError: something cannot be read, or is too large.
    """
    if not env:
        return env, []
    parts = json.loads(env)
    excludes = tuple(parts.pop("excludes", ()))
    packages: list[Package] = []

    def address(path: str, *, with_name: bool) -> str:
        if package_of(path) is not None:
            return path
        package = of_path(path, excludes, with_name=with_name)
        packages.append(package)
        return address_of(package.name)

    try:
        if "working_dir" in parts:
            parts["working_dir"] = address(parts["working_dir"], with_name=False)
        if "py_modules" in parts:
            parts["py_modules"] = [
                address(path, with_name=True) for path in parts["py_modules"]
            ]
    except BaseException:
        close(packages)
        raise
    if not parts:
        return "", []
    return json.dumps(parts, sort_keys=True, separators=(",", ":")), packages


def close(packages: list[Package]) -> None:
    """Close packages that are not needed any more.  Repeatable."""
    for package in packages:
        package.close()


def ship(runtime: core.Runtime, env: str) -> str:
    """Pack and upload; return the environment as it travels.

    What the environment names as a package already is kept for this job as well.

    Raises:
        ValueError: as `pack`.
        SparkrayError: the head is away.
    """
    env, packages = pack(env)
    try:
        _keep(runtime, set(packages_in(env)) - {package.name for package in packages})
        upload(runtime, packages)
    finally:
        close(packages)
    return env


def upload(runtime: core.Runtime, packages: list[Package]) -> None:
    """Store packages in the head for this job, unless they are there.

    Raises:
        SparkrayError: the head is away.
    """
    _keep(runtime, {package.name for package in packages})
    for package in packages:
        _upload(runtime, package)


def portable(checked: dict[str, Any]) -> dict[str, Any]:
    """Return options as they are pickled: without paths of this machine."""
    given = checked.get("runtime_env")
    runtime = core.current_or_none()
    if not given or runtime is None:
        return checked
    env = ship(runtime, runtime_env.normalize(given))
    return {**checked, "runtime_env": json.loads(env) if env else {}}


def of_path(
    path: str,
    excludes: tuple[str, ...],
    *,
    with_name: bool = True,
    max_bytes: int = MAX_PACKAGE_BYTES,
) -> Package:
    """Return a directory, an archive or a ``.py`` file as a package.

    Args:
        with_name: whether a directory is in it by its name, or only what it holds.

    Raises:
        ValueError: it cannot be read, or has more than ``max_bytes``.
    """
    from sparkray.api import packing  # most programs never need it

    if os.path.isfile(path):
        found = [packing.single(path)]
        packing.check_size(path, found, max_bytes)
        if not path.endswith(".py"):
            packing.check_archive(path)
            suffix = ".whl" if path.endswith(".whl") else ".zip"
            return _named((path, found), suffix, lambda: open(path, "rb"))
        prefix = ""
    else:
        found = packing.entries(path, excludes)
        packing.check_size(path, found, max_bytes)
        prefix = f"{os.path.basename(path)}/" if with_name else ""
    make = functools.partial(packing.write_zip, found, prefix)
    return _named((path, prefix, found), ".zip", make)


def _named(seen: Any, suffix: str, make: Callable[[], IO[bytes]]) -> Package:
    """Return a package.

    Args:
        seen: what its content was made from: if equal, that is equal too.
    """
    key = hashlib.sha256(repr(seen).encode(errors="surrogateescape")).digest()
    with _lock:
        name = _known.get(key)
    if name is not None:
        return Package(name, make)
    file = make()
    name = _hash_of(file) + suffix
    with _lock:
        _known[key] = name
        if len(_known) > _KNOWN_KEPT:
            _known.popitem(last=False)
    return Package(name, make, file)


def _hash_of(file: IO[bytes]) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    file.seek(0)
    digest = hashlib.sha256()
    while data := file.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()


def _keep(runtime: core.Runtime, names: Iterable[str]) -> None:
    """Have the head keep packages, there or to come, until this job ends."""
    for name in names:
        _put(runtime, use_key(name, runtime.job_id), b"")


def _upload(runtime: core.Runtime, package: Package) -> None:
    name = package.name
    key = manifest_key(name)
    there = runtime.head_call("KVGet", control.KVGet(NAMESPACE, key)).value
    if there is not None and msgspec.msgpack.decode(there, type=Manifest).complete:
        return
    file = package.open()
    pieces = -(-file.seek(0, os.SEEK_END) // PIECE_BYTES)
    _put(runtime, key, msgspec.msgpack.encode(Manifest(pieces, False)))
    file.seek(0)
    for number in range(pieces):
        _put(runtime, piece_key(name, number), file.read(PIECE_BYTES))
    _put(runtime, key, msgspec.msgpack.encode(Manifest(pieces, True)))


def _put(runtime: core.Runtime, key: bytes, value: bytes) -> None:
    request = control.KVPut(NAMESPACE, key, value, True)
    runtime.head_call("KVPut", request, _PIECE_S)
