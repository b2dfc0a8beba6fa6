"""Unpacks what runtime environments ship: zips and wheels."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
import zlib

from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.protocol.archives import check_members

_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


def unpack(archive: str, target: str) -> None:
    """Unpack a zip or a wheel into a new directory.

    Raises:
        RuntimeEnvSetupError: it is none, or damaged, or holds what is refused.
        OSError: the disk is full.
    """
    try:
        _extract(archive, target)
    except _DAMAGED as error:
        raise RuntimeEnvSetupError(
            f"a package of the runtime environment is no good archive: {error}"
        ) from error
    os.makedirs(target, exist_ok=True)  # an archive without files
    for name in os.listdir(target):
        if name.endswith(".data"):
            _spread_wheel_data(target, os.path.join(target, name))


def _extract(archive: str, target: str) -> None:
    with zipfile.ZipFile(archive) as source:
        check_members(source.infolist())
        for info in source.infolist():
            path = source.extract(info, target)
            mode = info.external_attr >> 16
            if stat.S_ISREG(mode) and mode & 0o100:
                os.chmod(path, 0o755)


def _spread_wheel_data(target: str, data: str) -> None:
    """A wheel may keep modules in ``NAME.data/purelib``: put them beside the others."""
    for part in ("purelib", "platlib"):
        place = os.path.join(data, part)
        if os.path.isdir(place):
            shutil.copytree(place, target, dirs_exist_ok=True)
