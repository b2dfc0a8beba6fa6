"""When a process that died is started again, and when it is given up.  Pure."""

from __future__ import annotations

from typing import Final

#: One that has run for so long has not died of its start.
QUICK_S: Final = 2.0
#: So many quick deaths in a row are too many.
MAX_QUICK: Final = 8
#: The pause before a start grows with quick deaths: first, longest.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 3.0


class Restarts:
    """Counts the deaths of one process."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self.quick = 0  #: deaths in a row soon after the start

    def started(self, now_s: float) -> None:
        self._started_s = now_s

    def pause_s(self, now_s: float) -> float | None:
        """The process died: return how long to wait, None to give it up."""
        self.quick = self.quick + 1 if now_s - self._started_s < QUICK_S else 0
        if self.quick >= MAX_QUICK:
            return None
        return min(FIRST_PAUSE_S * float(1 << self.quick), MAX_PAUSE_S)
