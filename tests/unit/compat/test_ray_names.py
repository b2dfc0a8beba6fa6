import importlib
import logging
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import sparkray
import sparkray.compat.ray as ray
from sparkray import exceptions
from sparkray.api import actor_options, options, runtime_env
from sparkray.compat.ray._options import OF_GROUPS, WITHOUT_EFFECT
from sparkray.compat.ray.table import (
    OPTIONS,
    RUNTIME_ENV,
    TABLE,
    Row,
    Verdict,
    modules,
    page,
    resolve,
)
from sparkray.util.placement_group import PlacementGroup
from tests.unit.compat import names_of_ray

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_the_table_says_what_is_there(row: Row) -> None:
    if row.verdict is Verdict.ABSENT:
        with pytest.raises(AttributeError):
            resolve(row.name)
    else:
        assert resolve(row.name) is not None
    assert bool(row.note) is (row.verdict is not Verdict.WORKS)


def test_all_that_is_there_is_in_the_table() -> None:
    listed = {row.name for row in TABLE}
    assert {*ray.__all__} <= listed
    assert {f"exceptions.{name}" for name in ray.exceptions.__all__} <= listed
    assert {f"util.{name}" for name in ray.util.__all__} <= listed
    assert len(listed) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_what_can_be_imported_is_there_without_an_import(row: Row) -> None:
    hidden = row.name.startswith("util.placement_group.")  # by the function, as in Ray
    if row.verdict is not Verdict.ABSENT and not hidden:
        value: Any = ray
        for part in row.name.split("."):
            value = getattr(value, part)
        assert value is resolve(row.name)


def test_what_modules_hold_is_in_the_table_under_one_name_at_least() -> None:
    listed = {row.name for row in TABLE}
    for name in modules():
        module = importlib.import_module(f"sparkray.compat.ray.{name}")
        above = name.rpartition(".")[0]
        for what in getattr(module, "__all__", ()):
            known = f"{name}.{what}", f"{above}.{what}"
            assert {*known} & listed or what == "tqdm_ray", known


def _has_row(name: str, rows: Iterable[str]) -> bool:
    return any(row == name or row.startswith(f"{name}.") for row in rows)


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", names_of_ray.TOP),
        ("util.", names_of_ray.UTIL),
        ("util.state.", names_of_ray.STATE),
        ("exceptions.", names_of_ray.EXCEPTIONS),
    ],
)
def test_every_name_of_ray_has_a_verdict(prefix: str, names: list[str]) -> None:
    listed = [row.name for row in TABLE]
    assert not [name for name in names if not _has_row(prefix + name, listed)]


@pytest.mark.parametrize(("name", "members"), names_of_ray.MEMBERS.items())
def test_a_member_that_is_missing_is_named(name: str, members: list[str]) -> None:
    (row,) = (row for row in TABLE if row.name == name)
    missing = [member for member in members if not hasattr(resolve(name), member)]
    assert not [member for member in missing if f"`{member}`" not in row.note]


#: Options that only sparkray has.
NOT_RAYS = {"timeout_s"}


def test_every_option_of_ray_has_a_verdict_that_holds() -> None:
    by_verdict: dict[Verdict, set[str]] = {verdict: set() for verdict in Verdict}
    for row in OPTIONS:
        by_verdict[row.verdict].add(row.name)
    assert {*names_of_ray.OPTIONS} <= {row.name for row in OPTIONS}
    ours = {*options.CHECKS, *actor_options.CHECKS, *options.ALIASES}
    assert by_verdict[Verdict.WORKS] == ours - NOT_RAYS | {*OF_GROUPS}
    assert by_verdict[Verdict.DIFFERS] == {*WITHOUT_EFFECT}


def test_every_key_of_a_runtime_environment_has_a_verdict_that_holds() -> None:
    there = {row.name for row in RUNTIME_ENV if row.verdict is not Verdict.ABSENT}
    assert {*names_of_ray.RUNTIME_ENV_KEYS} <= {row.name for row in RUNTIME_ENV}
    assert there == {*runtime_env.CHECKS}


class Actor:
    @ray.method(num_returns=2)
    def two(self) -> Any: ...


def function() -> None: ...


@pytest.mark.parametrize("target", [function, Actor])
@pytest.mark.parametrize("option", sorted(WITHOUT_EFFECT))
def test_an_option_without_effect_is_taken_with_a_warning(
    target: Any, option: str
) -> None:
    with pytest.warns(UserWarning, match=f"{option} has no effect"):
        made = ray.remote(**{option: "x"})(target)
    with pytest.warns(UserWarning, match=f"{option} has no effect"):
        again = made.options(**{option: "x"})
    assert again.options(**{option: None, "num_cpus": 2})
    with pytest.raises(ValueError, match=option):
        sparkray.remote(target).options(**{option: "x"})


@pytest.mark.parametrize("target", [function, Actor])
def test_a_placement_group_may_be_given_as_in_old_scripts(target: Any) -> None:
    group = PlacementGroup(b"g" * 16, [{"CPU": 1}, {"CPU": 1}])
    made: Any = ray.remote(target).options(
        placement_group=group,
        placement_group_bundle_index=1,
        placement_group_capture_child_tasks=True,
    )
    strategy = made._options.strategy
    assert (strategy.group_id, strategy.bundle, strategy.capture) == (group.id, 1, True)
    outside: Any = made.options(placement_group=None)
    assert outside._options.strategy.group_id == b""
    assert pickle.loads(pickle.dumps(made))._options == made._options
    with pytest.raises(ValueError, match="need placement_group"):
        ray.remote(placement_group_bundle_index=1)(target)
    with pytest.raises(ValueError, match="one of them"):
        made.options(placement_group=group, scheduling_strategy="SPREAD")
    with pytest.raises(ValueError, match="use scheduling_strategy=PlacementGroupSch"):
        sparkray.remote(placement_group=group)(target)


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == page(), "run: python docs/generate.py"


def test_an_except_clause_with_rays_name_catches_our_error() -> None:
    for error in (
        exceptions.ActorDiedError("x"),
        exceptions.ActorUnavailableError("x"),
    ):
        try:
            raise error
        except ray.exceptions.RayActorError as caught:
            assert isinstance(caught, ray.exceptions.RayError)
    assert ray.exceptions.RayTaskError is exceptions.TaskError


@pytest.mark.parametrize(
    ("argument", "value"),
    [("local_mode", True), ("_temp_dir", "/x"), ("job_config", 1)],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(
    argument: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=argument):
        ray.init(**{argument: value})
    assert not sparkray.is_initialized()


def test_as_rays_inspection_ours_prints(capsys: Any) -> None:
    assert ray.util.inspect_serializability(1, name="one", depth=2) == (True, set())
    assert "one" in capsys.readouterr().out


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        ray.util.as_completed([], chunk_size=0)
    with pytest.raises(ValueError, match="backpressure_size"):
        ray.util.map_unordered(None, [], backpressure_size=0)


def test_an_environment_is_a_dict_of_what_was_given() -> None:
    config = ray.runtime_env.RuntimeEnvConfig(60, eager_install=False)
    env = ray.runtime_env.RuntimeEnv(pip=["x"], working_dir=None, config=config)
    assert env == {"pip": ["x"], "config": {"setup_timeout_seconds": 60}}


def test_what_has_no_effect_is_taken_with_a_word_in_the_log(
    caplog: Any, monkeypatch: Any
) -> None:
    passed_on: list[Any] = []
    monkeypatch.setattr(sparkray, "init", lambda *a, **k: passed_on.append((a, k)))
    with caplog.at_level(logging.DEBUG, "sparkray.compat.ray"):
        ray.init(
            num_cpus=2, include_dashboard=False, dashboard_port=1, local_mode=False
        )
    assert passed_on == [((None,), {"num_cpus": 2})]
    assert "include_dashboard" in caplog.text and "dashboard_port" in caplog.text
    with pytest.raises(ValueError, match="host:port"):
        ray.init("ray://head:10001")
