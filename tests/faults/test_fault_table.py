"""The fault table: when x how x what a process dies, and what the caller hears.

    when  while receiving / unpickling arguments / running / pickling the result /
          sending it
    how   SystemExit, os._exit, SIGKILL, segmentation fault, out of memory, hang
    what  task, actor call, actor constructor, generator

Each cell has its error; the error names process, signal or exit code, and what it said
last; what the user did not allow runs once; afterwards the same cluster works.

Not in the table: a constructor has no result and no time limit; only the death of the
process is possible while sparkray receives or sends, since no user code runs then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    TaskError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import PushTask
from sparkray.runtime import core
from sparkray.testing.faults import EXIT_CODE, How, crash
from sparkray.worker.results import Answers
from tests.support import Tally

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quick")]

LAST_LINE = "the last line it printed"
LIMIT_S = 0.5
STOP_S = 0.3
WAIT_S = 30.0

KILLS: dict[How, str] = {
    "os._exit": f"exited with code {EXIT_CODE}",
    "SIGKILL": "SIGKILL",
    "segfault": "SIGSEGV",
}
BY_USER_CODE = ("unpickling", "running", "pickling")
WHENS = ("receiving", *BY_USER_CODE, "sending")
HOWS: tuple[How, ...] = ("exit", *KILLS, "memory", "hang")


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A cluster that is not patient with tasks that do not stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKRAY_TASK_STOP_S", str(STOP_S))
        yield request.getfixturevalue("shared")


#: By what and when, then by how: seconds from the call to the error.
ToldS = dict[tuple[str, str], dict[How, float]]


@pytest.fixture(scope="module")
def told_s() -> Iterator[ToldS]:
    """Print the table at the end: ``pytest -s`` shows it."""
    rows: ToldS = {}
    yield rows
    print(f"\n{'seconds until told':24}", *(f"{how:>9}" for how in HOWS))
    for (what, when), row in rows.items():
        cells = (f"{row[how]:9.2f}" if how in row else " " * 9 for how in HOWS)
        print(f"{what + ', ' + when:24}", *cells)


class Fault(NamedTuple):
    """What is to happen, and where it is noted; ``times`` it happens, then no more."""

    when: str
    how: How
    note: Tally
    times: int = 1_000

    @property
    def is_over(self) -> bool:
        return self.note.count() >= self.times

    def strike(self) -> None:
        if not self.is_over:
            self.note.add(os.getpid())
            print(LAST_LINE, flush=True)
            crash(self.how)


class StrikesWhenUnpickled:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __reduce__(self) -> Any:
        return _struck, (self.fault,)


def _struck(fault: Fault) -> str:
    fault.strike()
    return "unpickled"


class StrikesWhenPickled:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __reduce__(self) -> Any:
        self.fault.strike()
        return str, ("done",)


def work(fault: Fault, _argument: object) -> Any:
    """What every kind of call does."""
    if fault.when == "running":
        fault.strike()
    elif fault.when == "pickling":
        return StrikesWhenPickled(fault)
    elif fault.when == "sending" and not fault.is_over:
        strike_when_sending(fault)
    return "done"


def argument(fault: Fault) -> object:
    return StrikesWhenUnpickled(fault) if fault.when == "unpickling" else None


def strike_when_sending(fault: Fault) -> None:
    """Have this process die with half of its next answer sent."""

    def half(answers: Any, channel: Any, body: bytes, *, hold: bool) -> None:
        channel.send(frame(body)[: len(body) // 2])
        fault.strike()

    Answers.add = half  # type: ignore[method-assign]


def strike_when_receiving(fault: Fault) -> None:
    """Have this process die of the next task that comes in."""

    handlers = core.current().shared.peers.handlers
    handlers[PushTask] = lambda channel, messages: fault.strike()


@sparkray.remote(num_cpus=4)
def task(fault: Fault, value: object) -> Any:
    return work(fault, value)


@sparkray.remote(num_cpus=4, num_returns="streaming")
def generator(fault: Fault, value: object) -> Iterator[Any]:
    yield "first"
    yield work(fault, value)


@sparkray.remote(num_cpus=4)
def prepare(fault: Fault) -> int:
    strike_when_receiving(fault)
    return os.getpid()


@sparkray.remote
class Actor:
    def __init__(self, fault: Fault | None = None, value: object = None) -> None:
        if fault is not None:
            work(fault, value)

    def call(self, fault: Fault, value: object) -> Any:
        return work(fault, value)

    def prepare(self, fault: Fault) -> None:
        strike_when_receiving(fault)

    def works(self) -> bool:
        return True


@sparkray.remote(num_cpus=4)
def works() -> bool:
    return True


Options = dict[str, Any]


def of_task(fault: Fault, options: Options) -> Any:
    if fault.when == "receiving":  # the next one goes to the same worker
        sparkray.get(prepare.remote(fault), timeout=WAIT_S)
    ref = task.options(**options).remote(fault, argument(fault))
    return sparkray.get(ref, timeout=WAIT_S)


def of_generator(fault: Fault, options: Options) -> Any:
    if fault.when == "receiving":
        sparkray.get(prepare.remote(fault), timeout=WAIT_S)
    items = generator.options(**options).remote(fault, argument(fault))
    *_, last = [sparkray.get(ref, timeout=WAIT_S) for ref in items]
    return last


def of_call(fault: Fault, options: Options) -> Any:
    retries = options.pop("max_retries", 0)
    actor = Actor.options(max_restarts=retries).remote()
    if fault.when == "receiving":
        sparkray.get(actor.prepare.remote(fault), timeout=WAIT_S)
    call = actor.call.options(max_task_retries=retries, **options)
    return sparkray.get(call.remote(fault, argument(fault)), timeout=WAIT_S)


def of_constructor(fault: Fault, options: Options) -> Any:
    retries = options.pop("max_retries", 0)
    made = Actor.options(max_restarts=retries, **options)
    actor = made.remote(fault, argument(fault))
    return sparkray.get(actor.works.remote(), timeout=WAIT_S) and "done"


WHATS: dict[str, Callable[[Fault, Options], Any]] = {
    "task": of_task,
    "call": of_call,
    "constructor": of_constructor,
    "generator": of_generator,
}


def is_possible(what: str, when: str, how: How) -> bool:
    if what == "constructor":
        return when in ("unpickling", "running") and how != "hang"
    return when in BY_USER_CODE or how in KILLS


CELLS = [
    pytest.param(what, when, how, id=f"{what}-{when}-{how}")
    for what in WHATS
    for when in WHENS
    for how in HOWS
    if is_possible(what, when, how)
]


def expected(what: str, how: How) -> type[BaseException]:
    if how == "memory":
        return MemoryError
    if how == "hang":
        return TaskTimeoutError
    return WorkerCrashedError if what in ("task", "generator") else ActorDiedError


def assert_explained(error: BaseException, fault: Fault) -> None:
    """The text has the process, how it ended, and what it said last."""
    text, pid = str(error), fault.note.lines()[-1]
    assert pid in text, "which process?"
    if fault.how in KILLS:
        assert f"process {pid} on {os.uname().nodename}" in text
        assert KILLS[fault.how] in text and LAST_LINE in text
    elif fault.how == "exit":
        assert f"sys.exit({EXIT_CODE})" in text or f"SystemExit: {EXIT_CODE}" in text
    elif fault.how == "memory":
        assert "MemoryError" in text and "crash" in text
    else:
        assert f"timeout_s={LIMIT_S:g}" in text


@pytest.mark.parametrize(("what", "when", "how"), CELLS)
def test_it_is_explained_runs_once_and_leaves_a_cluster_that_works(
    what: str, when: str, how: How, tmp_path: Path, told_s: ToldS
) -> None:
    fault = Fault(when, how, Tally(tmp_path))
    options: Options = {} if what != "task" else {"max_retries": 0}
    if what == "generator":
        options["max_retries"] = 0
    if how == "hang":
        options["timeout_s"] = LIMIT_S
    begun = time.monotonic()
    with pytest.raises(expected(what, how)) as caught:
        WHATS[what](fault, options)
    told_s.setdefault((what, when), {})[how] = time.monotonic() - begun
    assert fault.note.count() == 1
    assert_explained(caught.value, fault)
    if how == "memory" and what != "constructor":
        assert isinstance(caught.value, TaskError)
    assert sparkray.get(works.remote(), timeout=WAIT_S)


AGAIN = [cell for cell in CELLS if cell.values[2] in ("SIGKILL", "hang")]


@pytest.mark.parametrize(("what", "when", "how"), AGAIN)
def test_what_the_user_allows_is_done_again(
    what: str, when: str, how: How, tmp_path: Path
) -> None:
    fault = Fault(when, how, Tally(tmp_path), times=1)
    options: Options = {"max_retries": 1}
    if how == "hang":
        options |= {"timeout_s": LIMIT_S, "retry_exceptions": [TaskTimeoutError]}
    assert WHATS[what](fault, options) == "done"
    assert fault.note.count() == 1
