"""Copying memory, fast where the copy is large."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

#: From this size on numpy copies, if it is loaded: outside the interpreter lock.
UNLOCKED_MIN_BYTES: Final = 1024 * 1024
#: From this size on two threads share the copy (9.0 instead of 6.7 GB/s).
PARALLEL_MIN_BYTES: Final = 32 * 1024 * 1024
#: Without numpy a copy holds the interpreter lock; other threads get a turn in between.
_STEP_BYTES: Final = 4 * 1024 * 1024


def copy_into(target: memoryview, source: bytes | bytearray | memoryview) -> None:
    """Copy ``source`` into ``target``, a writable byte view of the same length."""
    size = len(target)
    if size < UNLOCKED_MIN_BYTES:
        target[:] = source
        return
    numpy = sys.modules.get("numpy")
    if hasattr(numpy, "copyto"):
        _copy_by_numpy(numpy, target, source)
        return
    view = memoryview(source)
    for start in range(0, size, _STEP_BYTES):
        target[start : start + _STEP_BYTES] = view[start : start + _STEP_BYTES]


def _copy_by_numpy(numpy: Any, target: memoryview, source: Any) -> None:
    to = numpy.frombuffer(target, dtype=numpy.uint8)
    frm = numpy.frombuffer(source, dtype=numpy.uint8)
    if len(target) < PARALLEL_MIN_BYTES:
        numpy.copyto(to, frm)
        return
    half = (len(target) // 2) & -4096
    helper = threading.Thread(
        target=numpy.copyto, args=(to[half:], frm[half:]), name="sparkray-copy"
    )
    helper.start()
    try:
        numpy.copyto(to[:half], frm[:half])
    finally:
        helper.join()
