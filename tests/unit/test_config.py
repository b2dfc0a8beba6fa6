import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from sparkray.config import PREFIX, Settings, unknown_variables
from sparkray.protocol.zygote import OMP_FOLLOWS

FIELDS = dataclasses.fields(Settings)
DOCS = Path(__file__).parents[2] / "docs"


def test_settings_are_defaults_when_the_environment_says_nothing() -> None:
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_is_read_from_its_variable(
    field: "dataclasses.Field[object]",
) -> None:
    settings = Settings.from_environment({PREFIX + field.name.upper(): "7"})
    value = getattr(settings, field.name)
    assert type(value) is type(field.default)
    assert value == type(field.default)("7")  # type: ignore[call-arg,misc]


def test_what_is_given_wins_over_a_variable_and_none_means_not_given() -> None:
    environment = {"SPARKRAY_START_TIMEOUT_S": "7", "SPARKRAY_LOG_DIR": "/logs"}
    settings = Settings.from_environment(environment, start_timeout_s=3.0, log_dir=None)
    assert settings.start_timeout_s == 3.0
    assert settings.log_dir == "/logs"


def test_a_variable_that_does_not_parse_is_named() -> None:
    with pytest.raises(
        ValueError, match="SPARKRAY_MAX_WORKERS='many' is not a valid int"
    ):
        Settings.from_environment({"SPARKRAY_MAX_WORKERS": "many"})


def test_variables_of_other_things_are_left_alone() -> None:
    environment = {
        "SPARKRAY_TOKEN": "secret",
        "SPARKRAY_ADDRESS": "a:1",
        "PATH": "/bin",
    }
    assert Settings.from_environment(environment) == Settings()


def test_unknown_variables_are_told_with_the_nearest_name_that_is_known() -> None:
    environment = {"SPARKRAY_MAX_WORKER": "8", "SPARKRAY_QQ": "1", "HOME": "/"}
    assert unknown_variables(environment) == (
        "ignored, unknown: SPARKRAY_MAX_WORKER (did you mean SPARKRAY_MAX_WORKERS?),"
        " SPARKRAY_QQ"
    )


def test_every_variable_that_the_documentation_names_is_known() -> None:
    text = (DOCS / "configuration.md").read_text() + (DOCS / "security.md").read_text()
    names = set(re.findall(r"SPARKRAY_[A-Z_]*[A-Z]", text)) | {OMP_FOLLOWS}
    assert unknown_variables(dict.fromkeys(names, "1")) == ""


def test_runtimes_take_the_shared_settings_of_their_agent_and_keep_the_rest() -> None:
    agent = Settings(inline_max_bytes=7, start_timeout_s=1.0)
    runtime = Settings(start_timeout_s=2.0).with_shared(agent.shared())
    assert runtime.inline_max_bytes == 7
    assert runtime.start_timeout_s == 2.0


def test_shared_settings_are_numbers_and_keep_their_type() -> None:
    on_the_wire = {name: float(value) for name, value in Settings().shared().items()}
    assert Settings().with_shared(on_the_wire) == Settings()
    assert type(Settings().with_shared(on_the_wire).inline_max_bytes) is int


def test_a_shared_setting_of_a_later_version_is_ignored() -> None:
    assert Settings().with_shared({"a_setting_of_tomorrow": 1.0}) == Settings()


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_is_explained(field: "dataclasses.Field[object]") -> None:
    assert field.metadata["doc"]


def test_the_configuration_page_is_what_the_code_says() -> None:
    generator = runpy.run_path(str(DOCS / "generate.py"))
    page = (DOCS / "configuration.md").read_text()
    assert page == generator["page"](), "run: python docs/generate.py"
