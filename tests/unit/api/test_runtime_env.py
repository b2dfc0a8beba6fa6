import json

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
