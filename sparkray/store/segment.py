"""Segments: files in shared memory that hold one object each.

A segment is made by the agent, written by one process and then only read.  Its name is
never used for another file, so a mapping by name is never stale.  What is where in the
file is the serializer's business.

Writing, measured with 100 MB: a new file takes 1.5 GB/s, a file written before 4.3
GB/s with ``pwrite`` and 6.6 GB/s through a mapping that stayed open, 9 GB/s with two
threads.  So the first write of a segment goes by ``pwrite``; a process that gets the
same segment again maps it and keeps the mapping.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from sparkray.store.host import free_bytes

_MAP_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000)
_PRIVATE: Final = mmap.MAP_PRIVATE | _MAP_NORESERVE
_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED: Final = 0x10
_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0)


class HasPieces(Protocol):
    """What can be written into a segment: see `serialize.Serialized`."""

    size_bytes: int

    def pieces(self) -> list[tuple[int, bytes | bytearray | memoryview]]: ...

    def write_into(self, buffer: memoryview) -> None: ...


def create_segment(path: str, capacity_bytes: int) -> None:
    """Make a segment that only this user can open, with its memory set aside.

    Raises:
        FileExistsError: there is one.
        OSError: no room (ENOSPC); names the directory and what is free there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, capacity_bytes)
    except OSError as error:
        os.unlink(path)
        if error.errno != errno.ENOSPC:
            raise
        raise no_room(os.path.dirname(path), capacity_bytes) from error
    finally:
        os.close(fd)


def no_room(directory: str, needed_bytes: int) -> OSError:
    """Return the ENOSPC error of ``directory``, with its free bytes."""
    return OSError(
        errno.ENOSPC,
        f"no room for {needed_bytes} bytes: {free_bytes(directory)} bytes are free",
        directory,
    )


def remove_segment(path: str, *, unmapped: bool) -> None:
    """Delete a segment.

    Args:
        unmapped: nobody reads or writes it any more, so its memory goes back at once
            even if a writer keeps a mapping; else it goes with the last mapping.
    """
    with contextlib.suppress(FileNotFoundError):
        if unmapped:
            os.truncate(path, 0)
        os.unlink(path)


def map_for_writing(path: str, size_bytes: int) -> memoryview:
    """Return a writable view of the beginning of a segment; it unmaps when it dies."""
    fd = _open(path, os.O_RDWR, size_bytes)
    try:
        return memoryview(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, _READ_WRITE))
    finally:
        os.close(fd)


class _ReadMapping(mmap.mmap):
    """A mapping that says when it goes: after the last view of it is gone."""

    on_release: Callable[[], None] | None = None

    def __del__(self) -> None:
        self.close()
        if self.on_release is not None:
            self.on_release()


def map_for_reading(
    path: str, size_bytes: int, on_release: Callable[[], None] | None = None
) -> memoryview:
    """Return a read-only view of the beginning of a segment.

    The mapping is private: whoever gets round the view's read-only flag (torch has no
    such flag) changes a copy of his own.  It holds no file descriptor.

    Args:
        on_release: called once when the last view of the mapping is gone, in whichever
            thread that happens, perhaps in the midst of garbage collection: it may only
            note the fact.

    Raises:
        FileNotFoundError: there is no such segment.
        OSError: it is shorter than ``size_bytes``.
    """
    fd = _open(path, os.O_RDONLY, size_bytes)
    try:
        mapping = _map_private(fd, size_bytes)
    finally:
        os.close(fd)
    mapping.on_release = on_release
    return memoryview(mapping).toreadonly()


def _open(path: str, flags: int, size_bytes: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    length = os.fstat(fd).st_size
    if length >= size_bytes > 0:
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, f"{length} bytes, not {size_bytes}", path)


if sys.version_info >= (3, 13):

    def _map_private(fd: int, size_bytes: int) -> _ReadMapping:
        return _ReadMapping(fd, size_bytes, _PRIVATE, _READ_WRITE, trackfd=False)

else:

    def _map_private(fd: int, size_bytes: int) -> _ReadMapping:
        """Map no file, then the file over it: before 3.13 every `mmap` keeps a
        descriptor, and thousands of objects would use them up."""
        anonymous = _PRIVATE | mmap.MAP_ANONYMOUS
        mapping = _ReadMapping(-1, size_bytes, anonymous, _READ_WRITE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        fixed = _PRIVATE | _MAP_FIXED
        mapped = _libc_mmap()(address, size_bytes, _READ_WRITE, fixed, fd, 0)
        if mapped != address:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return mapping


@functools.cache
def _libc_mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    return function


class WritableSegments:
    """Writes objects into segments; keeps the mappings of the last few.

    Safe to use from several threads as long as each segment is written by one.

    Args:
        max_mappings: how many mappings are kept.
        max_bytes: how large they are together at most.
    """

    def __init__(self, max_mappings: int = 8, max_bytes: int = 2 * 1024**3) -> None:
        self._max_mappings = max_mappings
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  #: guards the three below
        self._mappings: OrderedDict[str, memoryview] = OrderedDict()
        self._mapped_bytes = 0
        self._seen: OrderedDict[str, None] = OrderedDict()

    def write(self, path: str, capacity_bytes: int, value: HasPieces) -> None:
        """Write ``value`` to the beginning of a segment.

        Raises:
            FileNotFoundError: the segment is gone: the agent gave up on this writer.
            OSError: no room.
        """
        view = self._mapping(path, capacity_bytes)
        if view is not None:
            value.write_into(view)
            return
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for offset, piece in value.pieces():
                _write_all(fd, piece, offset)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            self._mappings.clear()
            self._seen.clear()
            self._mapped_bytes = 0

    def _mapping(self, path: str, capacity_bytes: int) -> memoryview | None:
        """Return the mapping of a segment that was written here before, else None."""
        with self._lock:
            view = self._mappings.get(path)
            if view is not None:
                self._mappings.move_to_end(path)
                return view
            if path not in self._seen or capacity_bytes > self._max_bytes:
                self._remember(path)
                return None
        view = _map_warm(path, capacity_bytes)
        with self._lock:
            if path not in self._mappings:
                self._mappings[path] = view
                self._mapped_bytes += capacity_bytes
                self._forget_oldest()
            return view

    def _remember(self, path: str) -> None:
        self._seen[path] = None
        self._seen.move_to_end(path)
        while len(self._seen) > 64:
            self._seen.popitem(last=False)

    def _forget_oldest(self) -> None:
        """A mapping that another thread is writing through lives until it is done."""
        while (
            len(self._mappings) > self._max_mappings
            or self._mapped_bytes > self._max_bytes
        ):
            _, view = self._mappings.popitem(last=False)
            self._mapped_bytes -= len(view)


def _map_warm(path: str, capacity_bytes: int) -> memoryview:
    fd = _open(path, os.O_RDWR, capacity_bytes)
    try:
        flags = mmap.MAP_SHARED | _POPULATE
        return memoryview(mmap.mmap(fd, capacity_bytes, flags, _READ_WRITE))
    finally:
        os.close(fd)


def _write_all(fd: int, piece: bytes | bytearray | memoryview, offset: int) -> None:
    view = memoryview(piece)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]
