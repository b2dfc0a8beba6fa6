"""The driver's own modules, for workers that have them not.

A worker whose import finds nothing asks the driver of its job.  What the driver itself
can import from outside of its Python installation (beside its script, in the notebook's
directory, from files added through Spark) is packed as ``py_modules`` are; installed
packages are the nodes' own affair.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from typing import Final

from sparkray.api import packages
from sparkray.protocol.environments import address_of
from sparkray.runtime.core import Runtime

_log = logging.getLogger("sparkray")

#: What is larger is shipped only when a runtime environment names it.
MAX_BYTES: Final = 64 * 1024 * 1024
#: Every node has its own.
_NEVER: Final = frozenset(["__main__", "sparkray", "pyspark", "py4j"])
_INSTALLED: Final = frozenset(["site-packages", "dist-packages"])
#: Of a directory without ``__init__.py`` only Python files travel.
_ONLY_PYTHON: Final = ("*", "!*/", "!*.py")


def is_installed(path: str) -> bool:
    """Tell whether a path belongs to a Python installation."""
    return _is_installed(os.path.abspath(path))


@functools.lru_cache(maxsize=1024)
def _is_installed(path: str) -> bool:
    if _INSTALLED & set(path.split(os.sep)):
        return True
    return any(
        place.startswith(root + os.sep) or place == root
        for root in _standard_library()
        for place in (path, os.path.realpath(path))
    )


def own_path() -> list[str]:
    """Return the import path without installed packages: those of Spark's nodes hold
    there, also where the driver's can be read."""
    return [place for place in sys.path if not is_installed(place)]


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [paths["stdlib"], paths["platstdlib"]]
    zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    found.append(os.path.join(os.path.dirname(paths["stdlib"]), zipped))
    return tuple({*found, *map(os.path.realpath, found)})


def place_of(name: str) -> str:
    """Return what of this machine has to travel for a module: a file or a directory.

    ``""`` if it is not there, or installed, or not made of Python files.
    """
    spec = None if name in _NEVER else _spec_of(name)
    if spec is None:
        return ""
    archive = getattr(spec.loader, "archive", None)
    if archive:
        place = str(archive)
    elif spec.submodule_search_locations:
        place = next(iter(spec.submodule_search_locations))
    else:
        place = spec.origin or ""
        if not place.endswith(".py"):
            return ""
    return "" if is_installed(place) else os.path.abspath(place)


def _spec_of(name: str) -> ModuleSpec | None:
    """Find a module as an import here does; quick where there is none."""
    path = own_path()
    for place in path:  # where files may have come a moment ago
        finder = sys.path_importer_cache.get(place or os.getcwd())
        if finder is not None and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    spec = PathFinder.find_spec(name, path)
    if (spec is None and name in sys.modules) or (spec and spec.origin is None):
        try:  # loaded from elsewhere; or a plain directory, which has the lowest rank
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
    return spec


def ship(runtime: Runtime, name: str) -> str:
    """Upload a module of this process; return the package that it is in, "" for none.

    Raises:
        ValueError: it cannot be read, or is too large.
        SparkrayError: the head is away.
    """
    place = place_of(name)
    if not place or not os.path.exists(place):
        return ""
    is_plain = os.path.isdir(place) and not os.path.isfile(
        os.path.join(place, "__init__.py")
    )
    excludes = _ONLY_PYTHON if is_plain else ()
    package = packages.of_path(place, excludes, max_bytes=MAX_BYTES)
    try:
        packages.upload(runtime, [package])
    finally:
        package.close()
    return address_of(package.name)


def serve(runtime: Runtime) -> None:
    """Answer workers that ask for modules of this process, from now on."""
    warned: set[str] = set()

    def find(name: str) -> str:
        try:
            return ship(runtime, name)
        except ValueError as error:
            if name not in warned:
                warned.add(name)
                _log.warning("tasks cannot import %r: %s", name, error)
        return ""

    runtime.find_module = find
