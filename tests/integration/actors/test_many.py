"""Actors made and ended by the thousand: nothing of them stays behind."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError
from sparkray.protocol import actors as p
from sparkray.runtime import core
from sparkray.runtime.state.actor import ActorClient
from tests.support import Gate, until

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote(num_cpus=0)
class Small:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


@sparkray.remote
def ask(actor: Any) -> Any:
    return sparkray.get(actor.get.remote())


@sparkray.remote
def fail() -> None:
    raise LookupError("no argument")


@sparkray.remote
def late(gate: Gate) -> int:
    gate.wait()
    return 5


def known() -> set[bytes]:
    """Return the actors that this process has anything of."""
    gc.collect()
    things = gc.get_objects()
    return {thing.actor_id for thing in things if isinstance(thing, ActorClient)}


def living() -> list[str]:
    listed = core.current().head_call("ListActors", p.ListActors())
    return [row.state for row in listed.actors if row.state != p.DEAD]


def test_what_a_driver_knows_of_an_actor_goes_with_its_last_handle() -> None:
    before = known()
    for _ in range(3):
        actors = [Small.remote(n) for n in range(10)]
        assert sparkray.get([a.get.remote() for a in actors], timeout=40) == [
            *range(10)
        ]
        assert len(known() - before) >= 10
        del actors
        until(lambda: known() <= before, 20)
    assert not core.current().actors.clients


def test_what_a_worker_knows_of_an_actor_goes_when_the_actor_ends() -> None:
    @sparkray.remote
    class User:
        def use(self, actor: Any) -> Any:
            return sparkray.get(actor.get.remote())

        def known(self) -> int:
            return len(core.current().actors.clients)

    user = User.remote()
    for n in range(5):
        assert sparkray.get(user.use.remote(Small.remote(n)), timeout=20) == n
    until(lambda: sparkray.get(user.known.remote()) == 0)


def test_a_handle_that_is_kept_tells_of_the_death_for_ever() -> None:
    actor = Small.remote(1)
    sparkray.get(actor.get.remote(), timeout=20)
    sparkray.kill(actor)
    until(lambda: not core.current().actors.clients)
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="kill was called"):
            sparkray.get(actor.get.remote(), timeout=10)
    with pytest.raises(ActorDiedError, match="kill was called"):
        sparkray.get(ask.remote(actor), timeout=20)


def test_copies_of_handles_and_refs_keep_nothing_alive_for_ever() -> None:
    actor = Small.remote(1)
    ref = actor.get.remote()
    copies = [copy.copy([actor, ref]), copy.deepcopy([actor, ref])]
    assert all(one == [actor, ref] for one in copies)
    assert sparkray.get(copies[1][0].get.remote(), timeout=20) == 1
    held = core.current().shared.table.entries
    object_id = ref.binary()
    assert object_id in held
    del actor, ref, copies
    until(lambda: object_id not in held and not living())


@pytest.mark.parametrize("how", ["kill", "drop"])
def test_an_actor_may_end_before_it_has_begun(how: str) -> None:
    for _ in range(50):
        actor = Small.remote()
        if how == "kill":
            sparkray.kill(actor)
        del actor
    until(lambda: not living(), 30)
    until(lambda: not core.current().actors.clients)


def test_an_actor_that_waits_for_its_arguments_can_be_killed(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    actor = Small.remote(late.remote(gate))
    waiting = actor.get.remote()
    sparkray.kill(actor)
    for ref in (waiting, actor.get.remote()):
        with pytest.raises(ActorDiedError, match="kill was called"):
            sparkray.get(ref, timeout=10)
    gate.open()
    assert not living()


def test_no_call_gets_through_after_a_kill() -> None:
    for called_before in (True, False):
        made = Small.options(name="again", lifetime="detached").remote(1)
        sparkray.get(made.get.remote(), timeout=20)
        actor = sparkray.get_actor("again")
        if called_before:
            sparkray.get(actor.get.remote(), timeout=20)
        sparkray.kill(actor)
        with pytest.raises(ActorDiedError, match="kill was called"):
            sparkray.get(actor.get.remote(), timeout=20)


@pytest.mark.parametrize("options", [{}, {"lifetime": "detached"}])
def test_actors_that_cannot_be_made_leave_nothing_behind(
    options: dict[str, Any],
) -> None:
    before = known()
    for _ in range(5):
        actor = Small.options(**options).remote(fail.remote())
        with pytest.raises(LookupError):
            sparkray.get(actor.get.remote(), timeout=20)
    del actor
    until(lambda: known() <= before)


def test_others_learn_that_an_actor_cannot_be_made() -> None:
    actor = Small.remote(fail.remote())
    with pytest.raises(LookupError, match="no argument"):
        sparkray.get(ask.remote(actor), timeout=20)
