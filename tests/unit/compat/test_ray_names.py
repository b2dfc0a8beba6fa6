import importlib
import logging
from pathlib import Path
from typing import Any

import pytest

import sparkray
import sparkray.compat.ray as ray
from sparkray import exceptions
from sparkray.compat.ray.table import TABLE, Row, Verdict, modules, page, resolve

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
