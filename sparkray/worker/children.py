"""The end of a process that a task forked, where its code returns to the worker's.

Such a child has the worker's sockets, but it is not the worker: an answer of its own
would go out in the middle of the worker's messages.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn


def end_child(error: BaseException | None) -> NoReturn:
    """End this process as a script ends that returned, or raised ``error``."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or replaced by None
            continue
    os._exit(code & 0xFF)
