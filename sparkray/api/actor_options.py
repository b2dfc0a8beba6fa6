"""The options of actors and of their methods: tables of checks, as for tasks.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparkray import resources
from sparkray.api import options, runtime_env
from sparkray.protocol.messages import Strategy

LIFETIMES: Final = ("detached", "non_detached")


@dataclass(frozen=True)
class ActorOptions:
    """Checked options of a class in the runtime's terms."""

    resources: resources.Vector
    name: str
    namespace: str
    detached: bool
    get_if_exists: bool
    max_restarts: int
    max_task_retries: int
    max_concurrency: int  #: 0 for the default
    max_pending_calls: int  #: -1 for no limit
    in_order: bool
    runtime_env: str
    strategy: Strategy
    inherits: bool  #: whether it may be captured by its creator's placement group
    groups: dict[str, int] = field(default_factory=dict)


def _text(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{option} must be text, not {value!r}")
    if not value:
        raise ValueError(f"{option} must not be empty")


def _lifetime(option: str, value: object) -> None:
    if not isinstance(value, str) or value not in LIFETIMES:
        raise ValueError(f"{option} must be one of {LIFETIMES}, not {value!r}")


def _yes_or_no(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{option} must be True or False, not {value!r}")


def _groups(option: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{option} must be a dict of name to number, not {value!r}")
    for name, limit in value.items():
        _text(f"a name in {option}", name)
        options.CHECKS["max_calls"](f"{option}[{name!r}]", limit)
        if not limit:
            raise ValueError(f"{option}[{name!r}] must be 1 or more")


def _at_least(minimum: int) -> Callable[[str, object], None]:
    return options.whole(minimum)


#: Every option of an actor -> its check.  ``None`` always means: the default.
CHECKS: Final[Mapping[str, Callable[[str, object], None]]] = {
    "num_cpus": options.CHECKS["num_cpus"],
    "num_gpus": options.CHECKS["num_gpus"],
    "memory": options.CHECKS["memory"],
    "resources": options.CHECKS["resources"],
    "name": _text,
    "namespace": _text,
    "lifetime": _lifetime,
    "get_if_exists": _yes_or_no,
    "max_restarts": _at_least(-1),
    "max_task_retries": _at_least(-1),
    "max_concurrency": _at_least(1),
    "max_pending_calls": _at_least(-1),
    "concurrency_groups": _groups,
    "allow_out_of_order_execution": _yes_or_no,
    "runtime_env": options.CHECKS["runtime_env"],
    "scheduling_strategy": options.CHECKS["scheduling_strategy"],
    "label_selector": options.label_selector,
}

#: Every option of a method, by `sparkray.method` or ``.options()`` -> its check.
METHOD_CHECKS: Final[Mapping[str, Callable[[str, object], None]]] = {
    "num_returns": options.CHECKS["num_returns"],
    "max_task_retries": _at_least(-1),
    "retry_exceptions": options.CHECKS["retry_exceptions"],
    "concurrency_group": _text,
    "name": options.CHECKS["name"],
    "generator_backpressure_num_objects": options.CHECKS[
        "generator_backpressure_num_objects"
    ],
    "timeout_s": options.CHECKS["timeout_s"],
}


def check(given: Mapping[str, object], checks: Mapping[str, Any]) -> dict[str, Any]:
    """Check options as users give them; return them without those that are None.

    Raises:
        TypeError: an option of the wrong type.
        ValueError: a value out of range, or an option that does not exist.
    """
    checked: dict[str, Any] = {}
    for spelling, value in given.items():
        option = options.ALIASES.get(spelling, spelling)
        test = checks.get(option)
        if test is None:
            raise ValueError(options.unknown(spelling, checks))
        if value is not None:
            test(spelling, value)
            checked[option] = value
    return checked


def resolve(checked: Mapping[str, Any]) -> ActorOptions:
    """Turn checked options into the runtime's terms.

    Raises:
        ValueError: the options do not fit one another.
    """
    name = checked.get("name", "")
    if checked.get("get_if_exists") and not name:
        raise ValueError("get_if_exists looks for an actor by name: give a name")
    amounts = dict(checked.get("resources", {}))
    for resource, option in options.RESERVED.items():
        if option in checked:
            amounts[resource] = checked[option]
    needs = resources.from_user(amounts)
    return ActorOptions(
        resources=needs,
        name=name,
        namespace=checked.get("namespace", ""),
        detached=checked.get("lifetime") == "detached",
        get_if_exists=checked.get("get_if_exists", False),
        max_restarts=checked.get("max_restarts", 0),
        max_task_retries=checked.get("max_task_retries", 0),
        max_concurrency=checked.get("max_concurrency", 0),
        max_pending_calls=checked.get("max_pending_calls", -1),
        in_order=not checked.get("allow_out_of_order_execution", False),
        runtime_env=runtime_env.normalize(checked.get("runtime_env")),
        strategy=options.resolve_strategy(checked, needs),
        inherits=options.may_be_captured(checked),
        groups=dict(checked.get("concurrency_groups", {})),
    )
