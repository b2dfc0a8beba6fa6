"""How actors end and start again: kills, exits, crashes, constructors that fail."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.actor import exit_actor
from sparkray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    TaskError,
)
from tests.support import Gate, Tally, until

pytestmark = pytest.mark.usefixtures("shared")


class Odd(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"odd code {code}")
        self.code = code


def crash(how: str) -> None:
    """End this process the hard way."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "segfault":
        ctypes.string_at(0)


@sparkray.remote
class Worker:
    def __init__(self, tally: Tally | None = None, how: str = "") -> None:
        if tally is not None:
            tally.add("made")
        if how == "raise":
            raise Odd(7)
        if how == "sys.exit":
            sys.exit(0)
        crash(how)
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def crash(self, how: str = "kill") -> None:
        crash(how)

    def crash_once(self, tally: Tally) -> int:
        tally.add("run")
        if tally.count() == 1:
            crash("kill")
        return self.add()

    def leave(self) -> None:
        exit_actor()

    def sys_exit(self, code: int) -> None:
        sys.exit(code)

    def wait(self, gate: Gate) -> None:
        gate.wait()

    def restarted(self) -> bool:
        return sparkray.get_runtime_context().was_current_actor_reconstructed


HOW = ["kill", "exit", "segfault"]


@pytest.mark.parametrize("how", HOW)
def test_a_crash_in_the_constructor_is_told_to_the_first_call(how: str) -> None:
    actor = Worker.remote(None, how)
    with pytest.raises(ActorDiedError) as caught:
        sparkray.get(actor.add.remote(), timeout=20)
    assert "Worker" in str(caught.value)


@pytest.mark.parametrize("how", HOW)
def test_a_crash_in_a_method_fails_its_call_and_all_later_ones(how: str) -> None:
    actor = Worker.remote()
    waiting = [actor.crash.remote(how), *(actor.add.remote() for _ in range(3))]
    for ref in waiting:
        with pytest.raises(ActorDiedError):
            sparkray.get(ref, timeout=20)
    with pytest.raises(ActorDiedError):
        sparkray.get(actor.add.remote(), timeout=5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_an_idle_actor_whose_process_is_ended_is_dead(number: int) -> None:
    actor = Worker.remote()
    os.kill(sparkray.get(actor.pid.remote()), number)

    def dead() -> bool:
        try:
            sparkray.get(actor.add.remote(), timeout=5)
        except ActorDiedError:
            return True
        return False

    until(dead, 10)


@pytest.mark.parametrize("how", HOW)
def test_after_a_crash_an_actor_starts_again_without_its_state(how: str) -> None:
    actor = Worker.options(max_restarts=1).remote()
    assert sparkray.get([actor.add.remote(), actor.add.remote()]) == [1, 2]
    assert not sparkray.get(actor.restarted.remote())
    with pytest.raises(ActorUnavailableError, match=r"Worker\.crash"):
        sparkray.get(actor.crash.remote(how), timeout=20)
    assert sparkray.get(actor.add.remote(), timeout=20) == 1
    assert sparkray.get(actor.restarted.remote())


def test_calls_that_had_not_begun_survive_the_restart_with_retries(
    tmp_path: Path,
) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=1, max_task_retries=1).remote()
    refs = [actor.crash_once.remote(tally), *(actor.add.remote() for _ in range(4))]
    assert sparkray.get(refs, timeout=20) == [1, 2, 3, 4, 5]
    assert tally.count() == 2


def test_calls_made_while_it_restarts_are_kept(tmp_path: Path) -> None:
    actor = Worker.options(max_restarts=-1).remote()
    with pytest.raises(ActorUnavailableError):
        sparkray.get(actor.crash.remote(), timeout=20)
    refs = [actor.add.remote() for _ in range(10)]
    assert sparkray.get(refs, timeout=20) == list(range(1, 11))


def test_the_limit_of_restarts_holds(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=2).remote(tally)
    for _ in range(2):
        with pytest.raises(ActorUnavailableError):
            sparkray.get(actor.crash.remote(), timeout=20)
        sparkray.get(actor.add.remote(), timeout=20)
    with pytest.raises(ActorDiedError):
        sparkray.get(actor.crash.remote(), timeout=20)
    assert tally.count() == 3


def test_a_crashing_constructor_uses_up_the_restarts(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=2).remote(tally, "exit")
    with pytest.raises(ActorDiedError):
        sparkray.get(actor.add.remote(), timeout=30)
    assert tally.count() == 3


def test_retries_of_one_method_do_not_touch_the_others(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=1).remote()
    retried = actor.crash_once.options(max_task_retries=1).remote(tally)
    assert sparkray.get(retried, timeout=20) == 1


def test_exceptions_are_retried_only_as_asked(tmp_path: Path) -> None:
    @sparkray.remote
    class Flaky:
        @sparkray.method(max_task_retries=3, retry_exceptions=[ConnectionError])
        def connect(self, tally: Tally, error: type[Exception]) -> int:
            tally.add()
            if tally.count() < 3:
                raise error("not now")
            return tally.count()

    actor = Flaky.remote()
    tally, other = Tally(tmp_path), Tally(tmp_path)
    assert sparkray.get(actor.connect.remote(tally, ConnectionError), timeout=20) == 3
    with pytest.raises(ValueError, match="not now"):
        sparkray.get(actor.connect.remote(other, ValueError), timeout=20)
    assert (tally.count(), other.count()) == (3, 1)


def test_kill_ends_running_and_waiting_calls(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    actor = Worker.remote()
    refs = [actor.wait.remote(gate), actor.add.remote()]
    assert sparkray.wait(refs, timeout=0.3)[0] == []
    sparkray.kill(actor)
    for ref in refs:
        with pytest.raises(ActorDiedError, match="kill was called"):
            sparkray.get(ref, timeout=5)
    sparkray.kill(actor)  # again: nothing happens


def test_kill_with_restart_gives_a_fresh_actor_and_keeps_to_the_limit() -> None:
    actor = Worker.options(max_restarts=1).remote()
    first = sparkray.get(actor.pid.remote())
    sparkray.kill(actor, no_restart=False)

    def restarted() -> bool:
        try:
            return bool(sparkray.get(actor.pid.remote(), timeout=10) != first)
        except ActorUnavailableError:
            return False

    until(restarted, 15)
    sparkray.kill(actor, no_restart=False)
    with pytest.raises(ActorDiedError):
        for _ in range(100):
            sparkray.get(actor.add.remote(), timeout=10)


@pytest.mark.parametrize("method", ["leave", "sys_exit"])
def test_who_leaves_on_purpose_is_not_restarted(tmp_path: Path, method: str) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=-1, max_task_retries=-1).remote(tally)
    arguments = [] if method == "leave" else [0]
    last = getattr(actor, method).remote(*arguments)
    for ref in (last, actor.add.remote()):
        with pytest.raises(ActorDiedError, match=r"exit_actor\(\)|sys\.exit"):
            sparkray.get(ref, timeout=10)
    assert tally.count() == 1


def test_answers_before_the_exit_arrive() -> None:
    actor = Worker.remote()
    refs = [actor.add.remote() for _ in range(50)]
    actor.leave.remote()
    assert sparkray.get(refs, timeout=10) == list(range(1, 51))


def test_exit_actor_outside_of_an_actor_says_so() -> None:
    with pytest.raises(TypeError, match="not in one"):
        exit_actor()


class Last:
    """Leaves a sign when its process ends."""

    def __init__(self, tally: Tally, hang: bool = False) -> None:
        if hang:
            atexit.register(threading.Event().wait)
        atexit.register(self.say, tally, "bye")

    def say(self, tally: Tally, word: str) -> None:
        tally.add(word)

    def pid(self) -> int:
        return os.getpid()

    def hold(self, tally: Tally, gate: Gate) -> str:
        tally.add("begun")
        gate.wait()
        return "done"

    def leave(self) -> None:
        exit_actor()

    def sys_exit(self) -> None:
        sys.exit(0)


class AsyncLast(Last):
    async def hold(self, tally: Tally, gate: Gate) -> str:  # type: ignore[override]
        tally.add("begun")
        while not gate.is_open():
            await asyncio.sleep(0.01)
        return "done"

    async def leave(self) -> None:  # type: ignore[override]
        exit_actor()


def last(kind: str) -> Any:
    if kind == "async":
        return sparkray.remote(AsyncLast)
    return sparkray.remote(max_concurrency=2 if kind == "threaded" else 1)(Last)


@pytest.mark.parametrize("kind", ["plain", "threaded", "async"])
@pytest.mark.parametrize("how", ["leave", "sys_exit", "__ray_terminate__", "drop"])
def test_what_an_actor_gave_to_atexit_runs_at_its_end(
    tmp_path: Path, kind: str, how: str
) -> None:
    tally = Tally(tmp_path)
    actor = last(kind).remote(tally)
    sparkray.get(actor.pid.remote(), timeout=20)
    if how != "drop":
        getattr(actor, how).remote()
    del actor
    until(lambda: tally.lines() == ["bye"])


def test_an_actor_that_is_killed_runs_nothing_more(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    actor = last("plain").remote(tally)
    pid = sparkray.get(actor.pid.remote(), timeout=20)
    sparkray.kill(actor)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert tally.lines() == []


@pytest.mark.parametrize("how", ["leave", "drop"])
def test_what_hangs_at_its_end_keeps_no_actor(tmp_path: Path, how: str) -> None:
    tally = Tally(tmp_path)
    actor = last("plain").remote(tally, hang=True)
    pid = sparkray.get(actor.pid.remote(), timeout=20)
    if how == "leave":
        actor.leave.remote()
    del actor
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert tally.lines() == ["bye"]


@pytest.mark.parametrize("kind", ["threaded", "async"])
@pytest.mark.parametrize("how", ["leave", "__ray_terminate__"])
def test_calls_that_run_when_an_actor_leaves_run_to_their_ends(
    tmp_path: Path, kind: str, how: str
) -> None:
    tally, gate = Tally(tmp_path), Gate(tmp_path)
    actor = last(kind).remote(tally)
    held = actor.hold.remote(tally, gate)
    until(tally.count)
    leaving = getattr(actor, how).remote()
    assert sparkray.wait([leaving], timeout=0.3)[0] == []
    too_late = actor.pid.remote()
    gate.open()
    assert sparkray.get(held, timeout=20) == "done"
    for ref in (leaving, too_late):
        with pytest.raises(ActorDiedError, match=r"exit_actor\(\)"):
            sparkray.get(ref, timeout=20)
    until(lambda: tally.lines() == ["begun", "bye"])


# --- constructors ---


def test_what_the_constructor_raised_comes_with_class_text_and_line() -> None:
    actor = Worker.remote(None, "raise")
    for _ in range(2):
        with pytest.raises(Odd) as caught:
            sparkray.get(actor.add.remote(), timeout=20)
        error: Any = caught.value
        assert isinstance(error, ActorDiedError) and error.code == 7
        text = str(error)
        assert "Odd: odd code 7" in text and "raise Odd(7)" in text
        assert "test_endings.py" in text and isinstance(error.__cause__, Odd)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Odd) and isinstance(again, ActorDiedError)


def test_a_constructor_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    actor = Worker.options(max_restarts=5, max_task_retries=5).remote(tally, "raise")
    with pytest.raises(ActorDiedError):
        sparkray.get(actor.add.remote(), timeout=20)
    assert tally.count() == 1


def test_a_constructor_that_exits_is_an_error_too() -> None:
    with pytest.raises(ActorDiedError, match="SystemExit"):
        sparkray.get(Worker.remote(None, "sys.exit").add.remote(), timeout=20)


def test_a_failing_constructor_frees_its_resources_and_its_name() -> None:
    options = {"resources": {"gadget": 2}, "name": "fails"}
    actor = Worker.options(**options).remote(None, "raise")
    with pytest.raises(Odd):
        sparkray.get(actor.add.remote(), timeout=20)
    good = Worker.options(**options).remote()
    assert sparkray.get(good.add.remote(), timeout=10) == 1


def test_other_callers_learn_of_the_constructors_error_too() -> None:
    @sparkray.remote
    def call(actor: Any) -> str:
        try:
            return str(sparkray.get(actor.add.remote(), timeout=10))
        except ActorDiedError as error:
            return str(error)

    actor = Worker.remote(None, "raise")
    assert "odd code 7" in sparkray.get(call.remote(actor), timeout=20)


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("early", [True, False])
def test_an_argument_of_the_constructor_that_fails_fails_the_calls(
    name: str | None, early: bool
) -> None:
    @sparkray.remote
    def fail() -> None:
        raise LookupError("no argument")

    argument = fail.remote()
    if early:
        sparkray.wait([argument], timeout=20)
    actor = Worker.options(name=name).remote(argument)
    with pytest.raises(LookupError, match="no argument"):
        sparkray.get(actor.add.remote(), timeout=10)


def test_an_argument_that_cannot_be_sent_names_the_chain_at_the_call() -> None:
    class Config:
        def __init__(self) -> None:
            self.inner = {"lock": threading.Lock()}

    with pytest.raises(TypeError, match="lock") as caught:
        Worker.remote(Config())
    assert "inner" in str(caught.value)
    actor = Worker.remote()
    with pytest.raises(TypeError, match="inner"):
        actor.wait.remote(Config())


def test_wrong_arguments_are_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"Worker\.__init__"):
        Worker.remote(1, 2, 3, 4)
    actor = Worker.remote()
    with pytest.raises(TypeError, match=r"Worker\.add"):
        actor.add.remote(5)
    with pytest.raises(TypeError, match=r"Worker\.add"):
        actor.add.remote(by=5)


def test_an_error_of_a_method_leaves_the_actor_alive() -> None:
    @sparkray.remote
    class Careful:
        def divide(self, by: int) -> float:
            return 1 / by

    actor = Careful.remote()
    with pytest.raises(ZeroDivisionError) as caught:
        sparkray.get(actor.divide.remote(0))
    assert isinstance(caught.value, TaskError) and "Careful.divide" in str(caught.value)
    assert sparkray.get(actor.divide.remote(2)) == 0.5


def test_a_wait_for_a_busy_actor_times_out(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    actor = Worker.remote()
    busy = actor.wait.remote(gate)
    with pytest.raises(GetTimeoutError):
        sparkray.get(busy, timeout=0.2)
    gate.open()
    sparkray.get(busy, timeout=10)
