"""The jobs of a cluster: one for each driver.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sparkray.protocol.control import JobInfo

#: How many ended jobs are still listed; the oldest are forgotten first.
MAX_ENDED: Final = 1_000


class JobTable:
    """All jobs, ended ones too.  A job ends once, with its driver, and stays ended."""

    def __init__(self) -> None:
        self._jobs: dict[bytes, JobInfo] = {}
        self.changed: set[bytes] = set()  #: what `state.saved` has to write

    def restore(self, jobs: Iterable[JobInfo]) -> None:
        """Take what an earlier head wrote."""
        by_end = sorted(jobs, key=lambda job: job.end_unix_s)
        self._jobs = {job.job_id: job for job in by_end}

    def add(self, job: JobInfo) -> None:
        """Take a job in, or update its row; one that has ended stays as it is."""
        known = self._jobs.get(job.job_id)
        if known is None or known.alive:
            self._jobs[job.job_id] = job
            self.changed.add(job.job_id)

    def end(self, job_id: bytes, now_unix_s: float) -> bool:
        """Note that a job ended; return False if that is no news."""
        job = self._jobs.get(job_id)
        if job is None or not job.alive:
            return False
        # Taken out and put back, so that the table's order is that of ending.
        del self._jobs[job_id]
        self._jobs[job_id] = msgspec.structs.replace(
            job, alive=False, end_unix_s=now_unix_s
        )
        self.changed.add(job_id)
        for old in self.ended()[:-MAX_ENDED]:
            del self._jobs[old]
            self.changed.add(old)
        return True

    def ended(self) -> list[bytes]:
        """Return the jobs that have ended, the oldest end first."""
        return [id_ for id_, job in self._jobs.items() if not job.alive]

    def is_alive(self, job_id: bytes) -> bool:
        """Whether a job is known and has not ended."""
        job = self._jobs.get(job_id)
        return job is not None and job.alive

    def of_node(self, node_id: bytes) -> list[bytes]:
        """Return the jobs whose drivers run on a node."""
        return [
            job.job_id
            for job in self._jobs.values()
            if job.alive and job.driver_node == node_id
        ]

    def find(self, job_id: bytes) -> JobInfo | None:
        return self._jobs.get(job_id)

    def get(self, job_id: bytes) -> JobInfo:
        """Return one job.

        Raises:
            KeyError: there is none; names the id.
        """
        try:
            return self._jobs[job_id]
        except KeyError:
            raise KeyError(f"no job {job_id.hex()}") from None

    def all(self) -> list[JobInfo]:
        return list(self._jobs.values())
