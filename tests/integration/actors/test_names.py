"""Named and detached actors: who finds them, when a name is free, who outlives whom."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

import sparkray
from sparkray.exceptions import ActorAlreadyExistsError, ActorDiedError
from tests.support import quiet, until


@sparkray.remote
class Named:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self) -> int:
        self.value += 1
        return self.value

    def pid(self) -> int:
        return os.getpid()


@sparkray.remote
def own_pid() -> int:
    return os.getpid()


@sparkray.remote
def get_or_create(name: str) -> int:
    actor = Named.options(name=name, get_if_exists=True, lifetime="detached").remote()
    return int(sparkray.get(actor.pid.remote()))


@pytest.mark.usefixtures("shared")
class TestNames:
    def test_a_named_actor_is_found_by_tasks_and_actors(self) -> None:
        @sparkray.remote
        def find() -> int:
            return int(sparkray.get(sparkray.get_actor("found").add.remote()))

        actor = Named.options(name="found").remote(5)
        assert sparkray.get(find.remote(), timeout=20) == 6
        assert sparkray.get_actor("found") == actor
        assert "found" in sparkray.util.list_named_actors()

    def test_a_name_that_is_taken_is_refused(self) -> None:
        actor = Named.options(name="taken").remote()
        with pytest.raises(ActorAlreadyExistsError, match="'taken'"):
            Named.options(name="taken").remote()
        assert sparkray.get(actor.add.remote(), timeout=20) == 1

    def test_an_unknown_name_says_which_namespace_was_searched(self) -> None:
        namespace = sparkray.get_runtime_context().namespace
        with pytest.raises(ValueError, match=f"nobody.*{namespace}"):
            sparkray.get_actor("nobody")
        with pytest.raises(ValueError, match="elsewhere"):
            sparkray.get_actor("nobody", namespace="elsewhere")

    def test_a_name_lives_in_its_namespace(self) -> None:
        options = {"name": "n", "namespace": "first"}
        first = Named.options(**options).remote(1)
        second = Named.options(name="n", namespace="second").remote(2)
        assert sparkray.get_actor("n", namespace="first") == first
        assert sparkray.get_actor("n", namespace="second") == second
        with pytest.raises(ValueError, match="'n'"):
            sparkray.get_actor("n")
        listed = sparkray.util.list_named_actors(all_namespaces=True)
        assert {"name": "n", "namespace": "first"} in listed

    def test_a_name_is_free_soon_after_a_kill_a_crash_and_the_last_handle(self) -> None:
        def make() -> Any:
            try:
                return Named.options(name="again").remote()
            except ValueError:
                return None

        actor = Named.options(name="again").remote()
        sparkray.get(actor.add.remote(), timeout=20)
        sparkray.kill(actor)
        actor = until(make, 5)
        os.kill(sparkray.get(actor.pid.remote(), timeout=20), 9)
        actor = until(make, 5)
        sparkray.get(actor.add.remote(), timeout=20)
        del actor
        actor = until(make, 5)
        assert sparkray.get(actor.add.remote(), timeout=20) == 1

    def test_get_if_exists_gives_the_one_that_lives(self) -> None:
        first = Named.options(name="one", get_if_exists=True).remote(10)
        second = Named.options(name="one", get_if_exists=True).remote(20)
        assert first == second
        assert sparkray.get(second.add.remote(), timeout=20) == 11

    def test_get_if_exists_from_many_processes_makes_one_actor(self) -> None:
        refs = [get_or_create.remote("race") for _ in range(8)]
        assert len(set(sparkray.get(refs, timeout=40))) == 1
        sparkray.kill(sparkray.get_actor("race"))

    def test_a_handle_got_by_name_does_not_keep_the_actor(self) -> None:
        actor = Named.options(name="kept").remote()
        other = sparkray.get_actor("kept")
        sparkray.get(other.add.remote(), timeout=20)
        del actor

        def dead() -> bool:
            try:
                sparkray.get(other.add.remote(), timeout=10)
            except ActorDiedError:
                return True
            return False

        until(dead, 10)

    def test_a_creator_that_ends_frees_nothing_of_a_detached_actor(self) -> None:
        def free() -> float:
            return sparkray.available_resources().get("CPU", 0.0)

        @sparkray.remote(max_calls=1)
        def make() -> tuple[int, int]:
            options = {"name": "holds", "lifetime": "detached", "num_cpus": 1}
            actor = Named.options(**options).remote()
            return os.getpid(), int(sparkray.get(actor.pid.remote()))

        total = sparkray.cluster_resources()["CPU"]
        until(lambda: free() == total)
        maker, actor_pid = sparkray.get(make.remote(), timeout=20)
        until(lambda: not psutil.pid_exists(maker))
        others = sparkray.get([own_pid.remote() for _ in range(20)], timeout=30)
        assert actor_pid not in others
        until(lambda: free() != 0.0 and quiet(lambda: free() == total - 1))
        assert sparkray.get(sparkray.get_actor("holds").pid.remote()) == actor_pid
        sparkray.kill(sparkray.get_actor("holds"))
        until(lambda: free() == total)

    def test_a_detached_actor_outlives_the_task_that_made_it(self) -> None:
        @sparkray.remote(max_calls=1)
        def make() -> int:
            actor = Named.options(name="detached", lifetime="detached").remote()
            return int(sparkray.get(actor.add.remote()))

        assert sparkray.get(make.remote(), timeout=20) == 1
        actor = sparkray.get_actor("detached")
        assert sparkray.get(actor.add.remote(), timeout=20) == 2
        sparkray.kill(actor)
        with pytest.raises(ActorDiedError):
            sparkray.get(actor.add.remote(), timeout=10)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_every_actor_has_the_methods_that_ray_gives_it(options: dict[str, int]) -> None:
    actor = Named.options(**options).remote(5)
    assert sparkray.get(actor.__ray_ready__.remote(), timeout=20) is True
    doubled = actor.__ray_call__.remote(lambda self, by: self.value * by, 2)
    assert sparkray.get(doubled, timeout=20) == 10
    with pytest.raises(TypeError, match="__ray_ready__"):
        actor.__ray_ready__.remote(1)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        sparkray.get(actor.__ray_terminate__.remote(), timeout=20)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        sparkray.get(actor.add.remote(), timeout=20)
