"""The vocabulary as a whole: contracts in docstrings, tags, names of calls."""

import inspect
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest

from sparkray.protocol import control, messages

HEADINGS = ("Answer", "Errors")
#: Structs that never travel alone say so instead of stating a contract.
PART = "Part of "


def _structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, msgspec.Struct)
        and value.__module__.startswith("sparkray.protocol.")
        and (value.__module__ == module.__name__ or module is messages)
    ]


def _tag(kind: type[msgspec.Struct]) -> Any:
    return kind.__struct_config__.tag


CHANNEL = [kind for kind in _structs(messages) if _tag(kind) is not None]
PARTS = [kind for kind in _structs(messages) if _tag(kind) is None]
CONTROL = [
    kind for kind in _structs(control) if PART not in (inspect.getdoc(kind) or "")
]


@pytest.mark.parametrize("kind", [*CHANNEL, *CONTROL], ids=lambda kind: kind.__name__)
def test_every_message_states_its_contract(kind: type[msgspec.Struct]) -> None:
    first, *rest = (inspect.getdoc(kind) or "").splitlines()
    assert " -> " in first, "the first line says who speaks to whom"
    headings = {line.partition(":")[0] for line in rest}
    assert headings >= set(HEADINGS)
    assert any(line.startswith(("Repeatable", "Not repeatable")) for line in rest)


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_a_struct_without_a_tag_is_documented_as_a_part(
    kind: type[msgspec.Struct],
) -> None:
    assert inspect.getdoc(kind)
    assert kind.__struct_config__.array_like


def test_every_message_with_a_tag_is_in_exactly_one_family() -> None:
    agent, task = get_args(messages.AgentMessage), get_args(messages.TaskMessage)
    assert set(agent) | set(task) == set(CHANNEL)
    assert not set(agent) & set(task)
    assert set(get_args(messages.ChannelMessage)) == set(CHANNEL)


def test_tags_are_never_shared_between_messages() -> None:
    tags = [_tag(kind) for kind in CHANNEL]
    assert len(set(tags)) == len(tags)


def test_agent_and_task_messages_have_their_own_ranges_of_tags() -> None:
    agent = [_tag(kind) for kind in get_args(messages.AgentMessage)]
    assert all(tag < 40 or tag >= 100 for tag in agent)
    assert all(40 <= _tag(kind) < 100 for kind in get_args(messages.TaskMessage))


def test_released_tags_do_not_move() -> None:
    frozen = {"Attach": 1, "RequestLeases": 5, "PinObject": 18, "HeadCall": 22}
    frozen |= {"Hello": 40, "PushTask": 42, "TaskDone": 43, "RemoveBorrower": 55}
    assert {name: _tag(getattr(messages, name)) for name in frozen} == frozen


@pytest.mark.parametrize(
    "calls",
    [control.HEAD_CALLS, control.HEAD_AGENT_CALLS, control.AGENT_CALLS],
    ids=["head", "head-agent", "agent"],
)
def test_calls_name_structs_for_request_and_answer(
    calls: dict[str, tuple[type, type]],
) -> None:
    for request, answer in calls.values():
        assert issubclass(request, msgspec.Struct)
        assert issubclass(answer, msgspec.Struct)


def test_no_call_of_agents_hides_a_call_of_runtimes() -> None:
    assert not set(control.HEAD_CALLS) & set(control.HEAD_AGENT_CALLS)


@pytest.mark.parametrize("kind", [*CHANNEL, *CONTROL], ids=lambda kind: kind.__name__)
def test_names_of_times_and_sizes_carry_their_unit(kind: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(kind):
        words = field.name.split("_")
        if words[-1] in ("timeout", "seconds", "duration", "ms"):
            pytest.fail(f"{kind.__name__}.{field.name}: say _s")
        if words[-1] in ("size", "length", "mb"):
            pytest.fail(f"{kind.__name__}.{field.name}: say _bytes")
