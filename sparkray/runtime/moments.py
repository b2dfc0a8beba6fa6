"""At which moments an exception may arise in the main thread without doing harm.

One out of a signal handler may come between any two steps.  In the midst of sparkray's
own work it would leave a lock held, half a message unsent, or a count not kept, and
some process would wait for ever.  Waits, and code of users, may be interrupted.
"""

from __future__ import annotations

import contextlib
import threading
from types import CodeType, FrameType
from typing import Final

from sparkray.runtime.agent_link import AgentLink
from sparkray.runtime.waiter import Waiter

WAITS: Final[frozenset[CodeType]] = frozenset(
    {
        AgentLink.attach.__code__,
        AgentLink.wait_for.__code__,
        Waiter.wait.__code__,
        threading.Condition.wait.__code__,
    }
)
_HELPERS: Final = frozenset({threading.__file__, contextlib.__file__})


def is_harmless(
    frame: FrameType | None, ours: tuple[str, ...], harmless: frozenset[CodeType]
) -> bool:
    """May an exception arise at the step that ``frame`` is about to do?

    Args:
        ours: how the files of code begin that must not be interrupted...
        harmless: ...but for these functions of it.
    """
    innermost = frame
    while frame is not None and frame.f_code.co_filename in _HELPERS:
        frame = frame.f_back
    if frame is None or innermost is None:
        return True
    if not frame.f_code.co_filename.startswith(ours):
        return True
    return innermost.f_code in harmless
