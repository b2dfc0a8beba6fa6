"""`get_runtime_context`: who asks, where it runs, what it was given."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import sparkray

IDS = ("job_id", "node_id", "worker_id", "task_id", "actor_id")


def _here() -> dict[str, Any]:
    context = sparkray.get_runtime_context()
    return {
        **context.get(),
        "task_name": context.get_task_name(),
        "actor_name": context.get_actor_name(),
        "namespace": context.namespace,
        "env": context.runtime_env,
        "head": context.gcs_address,
        "rebuilt": context.was_current_actor_reconstructed,
    }


def test_a_driver_is_no_task_and_no_actor(shared: ModuleType) -> None:
    here = _here()
    assert {name for name in IDS if here[name] is None} == {"task_id", "actor_id"}
    assert here["task_name"] is here["actor_name"] is None and here["env"] == {}
    context = sparkray.get_runtime_context()
    assert context.get_node_id() == shared.nodes()[0]["NodeID"]
    for ask in (context.get_assigned_resources, lambda: context.current_actor):
        with pytest.raises(RuntimeError):
            ask()


def test_the_labels_of_the_node_are_known(shared: ModuleType) -> None:
    def labels() -> dict[str, str]:
        return sparkray.get_runtime_context().get_node_labels()

    assert labels() == shared.nodes()[0]["Labels"]
    assert shared.get(sparkray.remote(labels).remote()) == labels()


def test_a_task_shares_its_drivers_job_and_has_ids_of_its_own(
    shared: ModuleType,
) -> None:
    look = sparkray.remote(_here).options(name="looking")
    env = {"env_vars": {"A": "b"}}
    first, second = shared.get([look.remote(), look.options(runtime_env=env).remote()])
    driver = _here()
    for seen in (first, second):
        assert all(seen[name] == driver[name] for name in ("job_id", "node_id"))
        assert all(seen[name] == driver[name] for name in ("namespace", "head"))
        assert seen["worker_id"] != driver["worker_id"] and seen["actor_id"] is None
        assert seen["task_name"] == "looking"
    assert first["task_id"] != second["task_id"]
    assert (first["env"], second["env"]) == ({}, env)


def test_an_actor_knows_itself(shared: ModuleType) -> None:
    @sparkray.remote(num_cpus=1, resources={"gadget": 0.5})
    class Actor:
        def look(self) -> dict[str, Any]:
            return _here()

        def given(self) -> dict[str, float]:
            return sparkray.get_runtime_context().get_assigned_resources()

        def me(self) -> Any:
            return sparkray.get_runtime_context().current_actor

    actor = Actor.options(name="self-aware").remote()
    first, second = shared.get([actor.look.remote(), actor.look.remote()])
    assert first["actor_id"] == second["actor_id"] and first["actor_id"]
    assert first["task_id"] != second["task_id"]
    assert first["actor_name"] == "self-aware" and first["rebuilt"] is False
    assert shared.get(actor.given.remote()) == {"CPU": 1.0, "gadget": 0.5}
    assert shared.get(actor.me.remote()) == actor
