"""Objects on disk: one file each, checked when it is read back.

    0       the object, as in its segment, so that it can be read where it is
    length  8 bytes  magic, b"SPKSPILL"
    + 8     u64      length of the object
    + 16    u32      CRC-32 of the object, then 12 bytes unused

A file gets its name when it is complete.  Functions block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from typing import Final

from sparkray.store.host import free_bytes

_TAIL: Final = struct.Struct("<8sQI12x")
_MAGIC: Final = b"SPKSPILL"
_STEP_BYTES: Final = 4 * 1024 * 1024


class SpillDamagedError(Exception):
    """The file is not what was written: cut off, altered, or something else."""


def write_spill(path: str, data: memoryview) -> None:
    """Write ``data`` to a new file.

    Raises:
        OSError: it could not be written; for lack of room, names the directory and what
            is free there.  Nothing is left behind.
    """
    draft = f"{path}.draft"
    try:
        _write(draft, data)
        os.rename(draft, path)
    except OSError as error:
        free = free_bytes(os.path.dirname(path))
        with contextlib.suppress(OSError):
            os.unlink(draft)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        directory = os.path.dirname(path)
        raise OSError(
            error.errno,
            f"no space left in the spill directory for {len(data)} bytes:"
            f" {free} bytes are free",
            directory,
        ) from error


def _write(path: str, data: memoryview) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, len(data) + _TAIL.size)
        crc = 0
        for start in range(0, len(data), _STEP_BYTES):
            step = data[start : start + _STEP_BYTES]
            crc = zlib.crc32(step, crc)
            while step:
                step = step[file.write(step) :]
        os.pwrite(file.fileno(), _TAIL.pack(_MAGIC, len(data), crc), len(data))


def read_spill(path: str, into: memoryview) -> None:
    """Read an object back.

    Raises:
        SpillDamagedError: the file does not hold an object of this length.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        expected = _checksum(file.fileno(), len(into), path)
        crc = 0
        for start in range(0, len(into), _STEP_BYTES):
            step = into[start : start + _STEP_BYTES]
            _read_all(file.fileno(), step, start, path)
            crc = zlib.crc32(step, crc)
    if crc != expected:
        raise SpillDamagedError(f"{path}: its content was altered")


def verify_spill(path: str, size_bytes: int) -> None:
    """Check a file without keeping what is in it.

    Raises:
        SpillDamagedError: the file does not hold an object of this length.
        OSError: it cannot be read.
    """
    step = memoryview(bytearray(min(size_bytes, _STEP_BYTES)))
    with open(path, "rb", buffering=0) as file:
        expected = _checksum(file.fileno(), size_bytes, path)
        crc = 0
        for start in range(0, size_bytes, _STEP_BYTES):
            part = step[: size_bytes - start]
            _read_all(file.fileno(), part, start, path)
            crc = zlib.crc32(part, crc)
    if crc != expected:
        raise SpillDamagedError(f"{path}: its content was altered")


def _checksum(fd: int, size_bytes: int, path: str) -> int:
    """Return the checksum that the file claims for its object."""
    tail = os.pread(fd, _TAIL.size + 1, size_bytes)
    if len(tail) != _TAIL.size:
        size = os.fstat(fd).st_size
        raise SpillDamagedError(f"{path}: {size} bytes, not {size_bytes + _TAIL.size}")
    magic, length, crc = _TAIL.unpack(tail)
    if magic != _MAGIC or length != size_bytes:
        raise SpillDamagedError(f"{path}: holds {length} bytes, not {size_bytes}")
    return int(crc)


def _read_all(fd: int, into: memoryview, offset: int, path: str) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(fd, [into[done:]], offset + done)
        if not count:
            raise SpillDamagedError(f"{path}: ends at {offset + done} bytes")
        done += count
