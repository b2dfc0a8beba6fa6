"""What becomes of the Spark jobs that start nodes: when to try again, when not.  Pure.

launched ── joined ── ended, lost           no failure: the node was there
   │
   ├── failed    tried again, later each time, until a node joins
   └── refused   nothing but a change of the executors' Python helps
"""

from __future__ import annotations

import re
from typing import Final

#: Pause after the first failure; it doubles with each, up to the second number.
PAUSE_S: Final = (0.5, 30.0)
MISSING_HELP: Final = (
    "the executors' Python cannot import sparkray: install it there (a cluster library,"
    " the init script, or spark.executorEnv.PYTHONPATH)"
)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
#: An exception's last line in a Python traceback: a (dotted) name, then its text.
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$")


class Launches:
    """The failures since a node last joined.

    Attributes:
        failure: why the last launch failed; "" if none did.
        hopeless: whether all will, for the same reason.
    """

    def __init__(self) -> None:
        self.failure = ""
        self.hopeless = False
        self._joined: set[int] = set()
        self._in_a_row = 0
        self._not_before_s = 0.0
        self._told: set[str] = set()

    def joined(self, number: int) -> None:
        """The node of a job is there."""
        if number not in self._joined:
            self._joined.add(number)
            self.failure, self.hopeless = "", False
            self._in_a_row, self._not_before_s = 0, 0.0
            self._told.clear()

    def failed(self, number: int, text: str, now_s: float, *, hopeless: bool) -> bool:
        """A job failed; tell whether that is news.

        It is not where the job's node was there, or the same was told before.
        """
        if number in self._joined:
            return False
        if now_s >= self._not_before_s:  # else one of several that failed together
            first_s, most_s = PAUSE_S
            pause_s = min(most_s, first_s * 2 ** min(self._in_a_row, 16))
            self._in_a_row += 1
            self._not_before_s = now_s + pause_s
        self.failure, self.hopeless = text, hopeless
        gist = re.sub(r"[0-9]+", "", text)  # process ids and the like are no news
        is_news = gist not in self._told
        self._told.add(gist)
        return is_news

    def may_launch(self, now_s: float) -> bool:
        """Tell whether the pause after the last failure is over."""
        return now_s >= self._not_before_s


def cause_of(error: Exception) -> tuple[str, bool]:
    """Read an error of Spark: why a job failed, and whether all will for that reason.

    The error of a function in Python is the last line of the last traceback in it; what
    else Spark raises says it in its first line.
    """
    text = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    cause = f"{type(error).__name__}: {lines[0] if lines else 'it says no more'}"
    _, traceback, rest = text.rpartition("Traceback (most recent call last):\n")
    if traceback:
        python = rest.partition("\nJVM stacktrace:")[0].splitlines()
        ends = [line for line in python if _PYTHON_ERROR.match(line)]
        cause = ends[0] if ends else cause
    missing = _MISSING.search(cause)
    if missing is None:
        return cause[:500], False
    if missing[1].partition(".")[0] == "sparkray":
        return MISSING_HELP, True
    return f"{MISSING_HELP}; it lacks {missing[1]}, which sparkray needs", True
