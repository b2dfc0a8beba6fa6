"""What each thread of this process does at this moment."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Final

#: So many of the innermost frames of a thread are shown.
MAX_FRAMES: Final = 100


def of_threads() -> list[tuple[str, str]]:
    """Return name and stack of each thread but this one, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return [
        (
            names.get(ident, f"thread {ident}"),
            "".join(traceback.format_stack(frame, MAX_FRAMES)),
        )
        for ident, frame in frames
        if ident != own
    ]
