import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.api import runtime_env

_NAMES = st.text("ABC_", min_size=1, max_size=3)
_ENVS = st.dictionaries(_NAMES, st.sampled_from(["", "x", "y z"]), max_size=4)


def test_the_plain_environment_is_empty_text() -> None:
    assert runtime_env.normalize(None) == runtime_env.normalize({}) == ""
    assert runtime_env.normalize({"env_vars": {}}) == ""


@given(_ENVS)
def test_equal_environments_are_equal_text_whatever_their_order(
    variables: dict[str, str],
) -> None:
    turned = dict(reversed(variables.items()))
    text = runtime_env.normalize({"env_vars": variables})
    assert text == runtime_env.normalize({"env_vars": turned})
    assert not variables or json.loads(text) == {"env_vars": variables}


@given(_ENVS, _ENVS)
def test_a_task_inherits_variables_and_its_own_win(
    parent: dict[str, str], child: dict[str, str]
) -> None:
    merged = runtime_env.merge(
        runtime_env.normalize({"env_vars": parent}),
        runtime_env.normalize({"env_vars": child}),
    )
    assert merged == runtime_env.normalize({"env_vars": {**parent, **child}})


def test_a_key_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"'conda' is not supported .*env_vars"):
        runtime_env.normalize({"conda": "x"})


@pytest.mark.parametrize("bad", [5, "text", ["env_vars"], {"env_vars": {"A": None}}])
def test_a_part_of_the_wrong_type_is_a_type_error(bad: object) -> None:
    with pytest.raises(TypeError):
        runtime_env.normalize(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"working_dir": 5},
        {"working_dir": b"/tmp"},
        {"py_modules": "/tmp"},
        {"py_modules": [5]},
        {"excludes": "x"},
        {"excludes": [1]},
        {"pip": 5},
        {"pip": [5]},
        {"pip": {"packages": ["x"], "pip_check": "yes"}},
        {"worker_process_setup_hook": 5},
        {"config": 5},
        {"config": {"setup_timeout_seconds": "5"}},
        {"config": {"setup_timeout_seconds": True}},
        {"env_vars": 5},
    ],
)
def test_every_key_refuses_what_is_of_the_wrong_type(bad: object) -> None:
    with pytest.raises(TypeError):
        runtime_env.normalize(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"working_dir": "/no/such/directory"},
        {"working_dir": ""},
        {"working_dir": "s3://bucket/x.zip"},
        {"working_dir": __file__},
        {"working_dir": "/dev/null"},
        {"py_modules": ["/no/such/module"]},
        {"py_modules": ["/etc/passwd"]},
        {"pip": "/no/such/requirements.txt"},
        {"pip": [""]},
        {"pip": {"package": ["x"]}},
        {"worker_process_setup_hook": "nodots"},
        {"config": {"setup_timeout_seconds": 0}},
        {"config": {"setup_timeout_seconds": float("nan")}},
        {"config": {"timeout": 1}},
        {"workingdir": "/tmp"},
        {5: "x"},
    ],
)
def test_what_cannot_be_is_a_value_error(bad: object) -> None:
    with pytest.raises(ValueError):
        runtime_env.normalize(bad)


def test_a_misspelt_key_is_answered_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'working_dir'"):
        runtime_env.normalize({"workingdir": "."})


def test_paths_are_whole_and_modules_stand_for_theirs(tmp_path: Path) -> None:
    env = json.loads(
        runtime_env.normalize({"working_dir": tmp_path, "py_modules": [json]})
    )
    assert env["working_dir"] == str(tmp_path)
    assert env["py_modules"] == [os.path.dirname(json.__file__)]


def test_requirements_come_from_a_list_a_file_or_a_dict(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# what we need\na==1\n\n  b>2\n")
    texts = {
        runtime_env.normalize({"pip": pip})
        for pip in (["a==1", "b>2"], str(file), file, {"packages": ["a==1", "b>2"]})
    }
    assert texts == {'{"pip":{"packages":["a==1","b>2"]}}'}
    assert runtime_env.normalize({"pip": []}) == ""


def test_a_hook_is_a_name_or_a_small_function() -> None:
    named = runtime_env.normalize({"worker_process_setup_hook": "os.getpid"})
    assert json.loads(named) == {"worker_process_setup_hook": "os.getpid"}
    assert "pickle:" in runtime_env.normalize({"worker_process_setup_hook": lambda: 1})
    data = b"x" * 100_000
    with pytest.raises(ValueError, match="importable"):
        runtime_env.normalize({"worker_process_setup_hook": lambda: data})
    with pytest.raises(TypeError, match="pickled"):
        lock = threading.Lock()
        runtime_env.normalize({"worker_process_setup_hook": lambda: lock})


def test_a_child_keeps_what_it_does_not_name_itself() -> None:
    parent = '{"pip":{"packages":["a"]},"py_modules":["package:x"]}'
    child = '{"py_modules":["package:y"]}'
    assert json.loads(runtime_env.merge(parent, child)) == {
        "pip": {"packages": ["a"]},
        "py_modules": ["package:y"],
    }


def test_an_eager_installation_is_taken_as_others_write_it() -> None:
    config = {"eager_install": False, "setup_timeout_seconds": 5}
    assert (
        runtime_env.normalize({"config": config})
        == '{"config":{"setup_timeout_seconds":5}}'
    )
    assert runtime_env.normalize({"config": {"eager_install": True}}) == ""
    with pytest.raises(TypeError, match="eager_install"):
        runtime_env.normalize({"config": {"eager_install": 1}})
