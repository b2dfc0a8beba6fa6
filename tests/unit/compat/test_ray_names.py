import logging
from pathlib import Path
from typing import Any

import pytest

import sparkray
import sparkray.compat.ray as ray
from sparkray import exceptions
from sparkray.compat.ray.table import TABLE, Row, Verdict, page, resolve

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
