"""Copying memory, fast where the copy is large."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

#: Copies of this size or more are shared between two threads, if numpy is loaded:
#: its copies run outside the interpreter lock.
PARALLEL_MIN_BYTES: Final = 4 * 1024 * 1024
#: Without numpy a copy holds the interpreter lock; other threads get a turn in between.
_STEP_BYTES: Final = 4 * 1024 * 1024


def copy_into(target: memoryview, source: bytes | bytearray | memoryview) -> None:
    """Copy ``source`` into ``target``, a writable byte view of the same length."""
    size = len(target)
    if size < PARALLEL_MIN_BYTES:
        target[:] = source
        return
    numpy = sys.modules.get("numpy")
    if hasattr(numpy, "copyto"):
        _copy_in_two_threads(numpy, target, source)
        return
    view = memoryview(source)
    for start in range(0, size, _STEP_BYTES):
        target[start : start + _STEP_BYTES] = view[start : start + _STEP_BYTES]


def _copy_in_two_threads(numpy: Any, target: memoryview, source: Any) -> None:
    to = numpy.frombuffer(target, dtype=numpy.uint8)
    frm = numpy.frombuffer(source, dtype=numpy.uint8)
    half = (len(target) // 2) & -4096
    helper = threading.Thread(
        target=numpy.copyto, args=(to[half:], frm[half:]), name="sparkray-copy"
    )
    helper.start()
    try:
        numpy.copyto(to[:half], frm[:half])
    finally:
        helper.join()
