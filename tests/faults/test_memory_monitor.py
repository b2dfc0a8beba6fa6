"""A host that is about to run out of memory: the newest task's worker is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, OutOfMemoryError
from tests.support import Tally

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module", autouse=True)
def full_host(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A cluster that takes any use of memory for too much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKRAY_MEMORY_THRESHOLD", "0.001")
        yield request.getfixturevalue("shared")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_task_that_is_ended_for_memory_says_so_and_runs_as_often_as_allowed(
    retries: int, tmp_path: Path
) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(max_retries=retries)
    def hoard() -> None:
        runs.add(os.getpid())
        time.sleep(60)

    with pytest.raises(OutOfMemoryError) as caught:
        sparkray.get(hoard.remote(), timeout=30)
    message = str(caught.value)
    assert "hoard" in message and "above the threshold" in message
    # One that is ended before its first line has not run; the last of them may be so.
    assert runs.count() <= retries + 1
    if runs.count() == retries + 1:
        assert f"process {runs.lines()[-1]} on {os.uname().nodename}" in message


def test_an_actor_that_is_ended_for_memory_says_so() -> None:
    @sparkray.remote
    class Hoarder:
        def wait(self) -> None:
            time.sleep(60)

    actor = Hoarder.remote()
    with pytest.raises(ActorDiedError, match="above the threshold"):
        sparkray.get(actor.wait.remote(), timeout=30)


def test_the_driver_lives_and_so_does_its_cluster() -> None:
    quick = sparkray.remote(max_retries=-1)(os.getpid)
    assert sparkray.get(quick.remote(), timeout=30) != os.getpid()
