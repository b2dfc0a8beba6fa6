"""The head's table of actors: every state and event, without any process."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sparkray.head.state import actors as state
from sparkray.head.state.actors import (
    MAX_DEAD,
    Actor,
    ActorState,
    ActorTable,
    End,
    Place,
    Tell,
)
from sparkray.protocol import actors as p
from sparkray.protocol.records import Address, LeaseSpec, Strategy

HOME = Address(b"w" * 16, b"home", "", "", 0)
AWAY = Address(b"v" * 16, b"away", "", "", 0)
NODE, WORKER, LEASE = b"node", b"worker", b"lease"


def request(actor_id: bytes = b"a1", **given: Any) -> p.CreateActor:
    values: dict[str, Any] = {
        "actor_id": actor_id, "job_id": b"job", "creator": HOME, "name": "",
        "namespace": "space", "get_if_exists": False, "detached": False,
        "max_restarts": 0, "spec": LeaseSpec(b"job", "", {}, Strategy(), 0),
        "creation": b"", "handle": b"",
    }  # fmt: skip
    return p.CreateActor(**(values | given))


def news(kind: str, incarnation: int = 1, actor_id: bytes = b"a1") -> p.ActorNews:
    address = AWAY if kind == "alive" else None
    error = b"boom" if kind == "failed" else b""
    return p.ActorNews(actor_id, incarnation, kind, address, f"it {kind}", error, 7)


def made(**given: Any) -> tuple[ActorTable, Actor]:
    table = ActorTable()
    actor, _ = table.create(request(**given), "C")
    return table, actor


def alive(**given: Any) -> tuple[ActorTable, Actor]:
    table, actor = made(**given)
    table.placed(actor, 1, NODE, WORKER, LEASE)
    table.news(news("alive"))
    return table, actor


def actor_in(wanted: ActorState) -> tuple[ActorTable, Actor]:
    if wanted is ActorState.PENDING:
        return made(max_restarts=1)
    table, actor = alive(max_restarts=1)
    if wanted is ActorState.RESTARTING:
        table.news(news("signal"))
    elif wanted is ActorState.DEAD:
        table.kill(b"a1", "killed", no_restart=True)
    assert actor.state is wanted
    return table, actor


#: Every event, told to an actor in its present incarnation.
EVENTS: dict[str, Any] = {
    "placed": lambda t, a: t.placed(a, a.incarnation, b"n2", b"w2", b"l2"),
    "not_begun": lambda t, a: t.not_begun(a, a.incarnation, "the worker is gone"),
    "unplaceable": lambda t, a: t.unplaceable(a, a.incarnation, "no room", b"e"),
    "alive": lambda t, a: t.news(news("alive", a.incarnation)),
    "failed": lambda t, a: t.news(news("failed", a.incarnation)),
    "left": lambda t, a: t.news(news("left", a.incarnation)),
    "signal": lambda t, a: t.news(news("signal", a.incarnation)),
    "kill": lambda t, a: t.kill(a.request.actor_id, "killed", no_restart=True),
    "restart": lambda t, a: t.kill(a.request.actor_id, "killed", no_restart=False),
    "owner_gone": lambda t, a: t.owner_gone(HOME.worker_id),
    "job_ended": lambda t, a: t.job_ended(b"job"),
    "node_gone": lambda t, a: t.node_gone(NODE, "it is gone"),
    "home_gone": lambda t, a: t.node_gone(HOME.node_id, "it is gone"),
}
P, A, R, D = ActorState
#: state -> event -> the state after it.  An actor of one restart, not detached.
AFTER: dict[ActorState, dict[str, ActorState]] = {
    P: dict(zip(EVENTS, (P, P, D, A, D, D, R, D, P, D, D, P, D), strict=True)),
    A: dict(zip(EVENTS, (A, A, A, A, D, D, R, D, R, D, D, R, D), strict=True)),
    R: dict(zip(EVENTS, (R, R, D, A, D, D, D, D, R, D, D, R, D), strict=True)),
    D: dict.fromkeys(EVENTS, D),
}


@pytest.mark.parametrize(("before", "event"), [*product(ActorState, EVENTS)])
def test_each_event_has_a_rule_in_each_state(before: ActorState, event: str) -> None:
    table, actor = actor_in(before)
    version, incarnation = actor.version, actor.incarnation
    effects = EVENTS[event](table, actor)
    assert actor.state is AFTER[before][event]
    told = [effect for effect in effects if isinstance(effect, Tell)]
    assert bool(told) == (actor.version > version), "who changes is told of"
    placing = [effect for effect in effects if isinstance(effect, Place)]
    assert bool(placing) == (actor.incarnation > incarnation)


def test_a_new_actor_is_told_of_and_placed() -> None:
    table = ActorTable()
    actor, effects = table.create(request(), "C")
    assert effects == [Tell(actor), Place(actor, 1)]
    assert actor.row().state == p.PENDING and actor.row().class_name == "C"


def test_the_same_request_twice_makes_one_actor() -> None:
    table, actor = made()
    assert table.create(request(), "C") == (actor, [])


def test_a_living_actor_has_its_address_and_a_dead_one_none() -> None:
    table, actor = alive()
    assert actor.row().address == AWAY and actor.row().pid == 7
    table.kill(b"a1", "killed", no_restart=True)
    assert actor.row().address is None and actor.row().pid == 0
    assert actor.row().reason == "killed"


def test_a_failed_constructor_keeps_its_error_and_gives_the_worker_back() -> None:
    table, actor = made(max_restarts=5)
    table.placed(actor, 1, NODE, WORKER, LEASE)
    effects = table.news(news("failed"))
    assert actor.row().error == b"boom"
    assert effects == [End(NODE, WORKER, LEASE, "it failed"), Tell(actor)]


def test_restarts_are_counted_down_and_the_last_death_is_final() -> None:
    table, actor = alive(max_restarts=2)
    for incarnation in (1, 2):
        effects = table.news(news("signal", incarnation))
        assert effects == [Tell(actor), Place(actor, incarnation + 1)]
        table.placed(actor, incarnation + 1, NODE, WORKER, LEASE)
        table.news(news("alive", incarnation + 1))
        assert actor.state is ActorState.ALIVE
    table.news(news("signal", 3))
    assert actor.state is ActorState.DEAD


def test_a_worker_lost_before_the_constructor_began_costs_no_restart() -> None:
    table, actor = made()
    table.placed(actor, 1, NODE, WORKER, LEASE)
    effects = table.not_begun(actor, 1, "the worker is gone")
    assert [type(effect) for effect in effects] == [End, Tell, Place]
    assert table.news(news("signal", 1)) == [], "its end is old news"
    assert actor.state is ActorState.PENDING


def test_minus_one_restarts_for_ever() -> None:
    table, actor = alive(max_restarts=-1)
    for incarnation in range(1, 50):
        table.news(news("signal", incarnation))
        table.news(news("alive", incarnation + 1))
    assert actor.state is ActorState.ALIVE and actor.incarnation == 50


@pytest.mark.parametrize("kind", ["alive", "failed", "left", "signal"])
def test_news_of_an_earlier_incarnation_change_nothing(kind: str) -> None:
    table, actor = alive(max_restarts=3)
    table.news(news("signal"))
    before = actor.row()
    assert table.news(news(kind, 1)) == []
    assert actor.row() == before


def test_news_of_an_unknown_actor_are_ignored() -> None:
    assert ActorTable().news(news("alive")) == []
    assert ActorTable().kill(b"a1", "killed", no_restart=True) == []


def test_a_worker_found_for_an_earlier_incarnation_is_given_back() -> None:
    table, actor = made(max_restarts=3)
    table.news(news("signal"))
    (effect,) = table.placed(actor, 1, NODE, WORKER, LEASE)
    assert isinstance(effect, End) and effect.worker_id == WORKER
    assert actor.worker_id == b""


def test_a_worker_found_after_the_actor_was_killed_is_given_back() -> None:
    table, actor = made()
    table.kill(b"a1", "killed", no_restart=True)
    (effect,) = table.placed(actor, 1, NODE, WORKER, LEASE)
    assert isinstance(effect, End)


def test_kill_with_restart_ends_the_worker_once_and_starts_another() -> None:
    table, actor = alive(max_restarts=1)
    effects = table.kill(b"a1", "killed", no_restart=False)
    assert [type(effect) for effect in effects] == [End, Tell, Place]
    table.placed(actor, 2, NODE, b"w2", b"l2")
    table.news(news("alive", 2))
    effects = table.kill(b"a1", "killed", no_restart=False)
    assert effects == [End(NODE, b"w2", b"l2", "killed"), Tell(actor)]
    assert actor.state is ActorState.DEAD


def test_a_node_that_dies_has_no_worker_to_end() -> None:
    table, actor = alive()
    assert table.node_gone(NODE, "no power") == [Tell(actor)]
    assert "no power" in actor.row().reason


def test_only_actors_of_the_node_are_affected() -> None:
    table, actor = alive()
    assert table.node_gone(b"other", "no power") == []
    assert actor.state is ActorState.ALIVE


def test_actors_end_with_the_node_of_the_process_that_made_them() -> None:
    table, actor = alive(max_restarts=-1)
    effects = table.node_gone(HOME.node_id, "no power")
    assert actor.state is ActorState.DEAD
    assert [type(effect) for effect in effects] == [End, Tell]


@pytest.mark.parametrize("event", ["owner_gone", "job_ended", "home_gone"])
def test_detached_actors_outlive_owner_job_and_home(event: str) -> None:
    table, actor = alive(detached=True)
    assert EVENTS[event](table, actor) == []
    assert actor.state is ActorState.ALIVE


def test_actors_of_other_owners_and_jobs_live_on() -> None:
    table, actor = alive()
    assert table.owner_gone(b"somebody") == table.job_ended(b"another") == []
    assert actor.state is ActorState.ALIVE


def test_a_name_is_taken_once_in_each_namespace() -> None:
    table, actor = made(name="n")
    with pytest.raises(ValueError, match="lives in namespace 'space' already"):
        table.create(request(b"a2", name="n"), "C")
    assert b"a2" not in table.actors
    other, _ = table.create(request(b"a3", name="n", namespace="else"), "C")
    assert table.find("n", "space") is actor and table.find("n", "else") is other


def test_get_if_exists_gives_the_one_that_lives() -> None:
    table, actor = made(name="n")
    found = table.create(request(b"a2", name="n", get_if_exists=True), "C")
    assert found == (actor, [])


@pytest.mark.parametrize(
    "event", ["unplaceable", "failed", "left", "kill", "owner_gone", "job_ended"]
)
def test_a_name_is_free_at_once_when_its_actor_has_died(event: str) -> None:
    table, actor = made(name="n")
    EVENTS[event](table, actor)
    with pytest.raises(ValueError, match="in namespace 'space'"):
        table.find("n", "space")
    again, _ = table.create(request(b"a2", name="n"), "C")
    assert table.find("n", "space") is again


def test_a_name_is_kept_while_its_actor_restarts() -> None:
    table, actor = alive(name="n", max_restarts=1)
    table.news(news("signal"))
    assert table.find("n", "space") is actor


def test_a_node_is_needed_by_actors_there_and_by_those_made_from_there() -> None:
    table, actor = alive()
    assert table.need(NODE) and table.need(b"home") and not table.need(b"other")
    table.kill(b"a1", "killed", no_restart=True)
    assert not table.need(NODE) and not table.need(b"home")
    detached, actor = alive(detached=True)
    assert detached.need(actor.node_id) and not detached.need(b"home")


def test_the_oldest_of_many_dead_are_forgotten() -> None:
    table = ActorTable()
    ids = [number.to_bytes(4, "big") for number in range(MAX_DEAD + 5)]
    for actor_id in ids:
        table.create(request(actor_id), "C")
        table.kill(actor_id, "killed", no_restart=True)
    assert list(table.actors) == ids[5:]


def test_the_states_are_those_that_callers_know() -> None:
    assert {s.value for s in state.ActorState} == {
        p.PENDING, p.ALIVE, p.RESTARTING, p.DEAD,
    }  # fmt: skip
