"""Watches the host's memory and ends a worker before the kernel ends something else."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sparkray.agent import host

_log = logging.getLogger(__name__)

#: How often memory is looked at.
CHECK_S: Final = 0.25
#: After one worker was ended, the kernel gets this long to take its memory back.
PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could be ended."""

    worker_id: bytes
    leased_at: float  #: monotonic seconds
    rss_bytes: int
    holder: bytes = b""  #: the process that leased it
    retriable: bool = True  #: what it runs may run again


def choose(
    used: float, threshold: float, candidates: Sequence[Candidate]
) -> Candidate | None:
    """Return whom to end, so that least is lost and each process keeps its share.

    Those go first whose tasks (actors) may run again; of these, those of the process
    that has most; of these the newest.  Drivers and UDFs are never ended.

    Args:
        used: fraction of memory in use.
        threshold: the fraction above which one is ended.
    """
    if used <= threshold or not candidates:
        return None
    some = [one for one in candidates if one.retriable] or candidates
    counts = Counter(one.holder for one in some)
    return max(some, key=lambda one: (counts[one.holder], one.leased_at))


class MemoryMonitor:
    """The loop around `choose`.

    Args:
        threshold: fraction of memory.
        candidates: returns the leased workers; called only when memory is short.
        kill: called with worker id and reason.
        used_fraction: how full memory is.
    """

    def __init__(
        self,
        threshold: float,
        candidates: Callable[[], list[Candidate]],
        kill: Callable[[bytes, str], None],
        used_fraction: Callable[[], float] = host.memory_used_fraction,
    ) -> None:
        self._threshold = threshold
        self._candidates, self._kill = candidates, kill
        self._used_fraction = used_fraction

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            used = self._used_fraction()
            victim = None
            if used > self._threshold:
                victim = choose(used, self._threshold, self._candidates())
            if victim is not None:
                reason = (
                    f"memory of the host is {used:.1%} full, above the threshold of"
                    f" {self._threshold:.0%}; this worker held"
                    f" {victim.rss_bytes >> 20} MiB, and was chosen as the newest of"
                    f" those that {'may' if victim.retriable else 'cannot'} run again"
                )
                _log.warning("ending worker %s: %s", victim.worker_id.hex(), reason)
                self._kill(victim.worker_id, reason)
            await asyncio.sleep(CHECK_S if victim is None else PAUSE_S)
