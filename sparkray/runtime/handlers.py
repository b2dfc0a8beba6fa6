"""The handler of a signal, as fast as Python knows it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any, Final

#: `signal.getsignal` spends some 5 µs on looking for an enum, a hundred times what this
#: one takes: too much for what is asked with every task.
handler_of: Final[Callable[[int], Any]] = getattr(
    sys.modules.get("_signal"), "getsignal", signal.getsignal
)
