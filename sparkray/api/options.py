"""The options of a remote function: one table of checks, then what the runtime takes.

Pure: no runtime, no clock, no environment.  A mistake of type raises `TypeError`, of
value `ValueError`, both when the option is given and not when the task runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from sparkray import labels, resources
from sparkray.api import runtime_env
from sparkray.api.strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from sparkray.protocol.messages import Strategy

STREAMING: Final = -1
DYNAMIC: Final = -2
#: Resources that have an option of their own.
RESERVED: Final[Mapping[str, str]] = {
    resources.CPU: "num_cpus",
    resources.GPU: "num_gpus",
    resources.MEMORY: "memory",
}
DEFAULT_MAX_RETRIES: Final = 3


@dataclass(frozen=True)
class TaskOptions:
    """Checked options in the runtime's terms."""

    resources: resources.Vector
    num_returns: int  #: -1 streaming, -2 dynamic
    max_retries: int  #: -1 for no limit
    retry_exceptions: bool | tuple[type[BaseException], ...]
    max_calls: int  #: 0 for no limit
    name: str  #: "" for the function's own
    runtime_env: str  #: canonical JSON, "" for the submitter's
    strategy: Strategy
    backpressure: int  #: items that may wait unconsumed; 0 for no limit
    inherits: bool  #: whether it may be captured by its parent's placement group
    timeout_s: float  #: how long one run may take; 0 for no limit


def _amount(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} must be a number, not {value!r}")
    resources.check_amount(option, value)
    resources.from_user({option: value})


def _timeout(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} must be a number of seconds, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{option} must be more than 0 and finite: {value!r}")


def _gpus(option: str, value: object) -> None:
    _amount(option, value)
    assert isinstance(value, (int, float))
    if value > 1 and value != int(value):
        raise ValueError(
            f"{option} above 1 must be whole, as only parts of one device are shared:"
            f" {value!r}"
        )


def label_selector(option: str, value: object) -> None:
    labels.from_user(value, option)


def _custom_resources(option: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{option} must be a dict of name to number, not {value!r}")
    for name, amount in value.items():
        if not isinstance(name, str):
            raise TypeError(f"a resource's name must be text, not {name!r}")
        if name in RESERVED:
            raise ValueError(f"{option} may not hold {name!r}: use {RESERVED[name]}")
        if not name:
            raise ValueError(f"{option} holds a resource without a name")
        _amount(f"{option}[{name!r}]", amount)


def whole(minimum: int, meaning: str = "") -> Callable[[str, object], None]:
    def check(option: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{option} must be a whole number, not {value!r}")
        if value < minimum:
            raise ValueError(f"{option} must be {minimum} or more{meaning}: {value}")

    return check


_COUNT = whole(0)


def _num_returns(option: str, value: object) -> None:
    if isinstance(value, str):
        if value not in ("dynamic", "streaming"):
            raise ValueError(
                f"{option} must be a number, 'dynamic' or 'streaming', not {value!r}"
            )
        return
    _COUNT(option, value)


def _retry_exceptions(option: str, value: object) -> None:
    if isinstance(value, bool):
        return
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"{option} must be a bool or a list of exception classes, not {value!r}"
        )
    for item in value:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise TypeError(f"{option} holds {item!r}, which is no exception class")


def _name(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{option} must be text, not {value!r}")


def _runtime_env(option: str, value: object) -> None:
    runtime_env.normalize(value)


def _strategy(option: str, value: object) -> None:
    if isinstance(
        value, (NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy)
    ):
        return
    if not isinstance(value, str):
        raise TypeError(
            f"{option} must be 'DEFAULT', 'SPREAD', a NodeAffinitySchedulingStrategy"
            f" or a PlacementGroupSchedulingStrategy, not {value!r}"
        )
    if value not in ("DEFAULT", "SPREAD"):
        raise ValueError(f"{option} must be 'DEFAULT' or 'SPREAD', not {value!r}")


#: Every option of a task -> its check.  ``None`` always means: the default.
CHECKS: Final[Mapping[str, Callable[[str, object], None]]] = {
    "num_cpus": _amount,
    "num_gpus": _gpus,
    "memory": _amount,
    "resources": _custom_resources,
    "num_returns": _num_returns,
    "max_retries": whole(-1, " (-1: no limit)"),
    "retry_exceptions": _retry_exceptions,
    "max_calls": _COUNT,
    "name": _name,
    "runtime_env": _runtime_env,
    "scheduling_strategy": _strategy,
    "label_selector": label_selector,
    "generator_backpressure_num_objects": whole(1),
    "timeout_s": _timeout,
}
#: Spellings that are taken too.
ALIASES: Final[Mapping[str, str]] = {
    "_generator_backpressure_num_objects": "generator_backpressure_num_objects"
}
_OF_STRATEGY: Final = (
    "use scheduling_strategy=PlacementGroupSchedulingStrategy(group, index, capture)"
)
#: Options that others have -> what to use.
INSTEAD: Final[Mapping[str, str]] = {
    "accelerator_type": "label the nodes and use label_selector",
    "fallback_strategy": "use one label_selector that all good nodes fit",
    "object_store_memory": "give the node's store a size, with init or start",
    "placement_group": _OF_STRATEGY,
    "placement_group_bundle_index": _OF_STRATEGY,
    "placement_group_capture_child_tasks": _OF_STRATEGY,
    "_actor_generator_backpressure_num_objects": "use the methods' option"
    " generator_backpressure_num_objects",
    **dict.fromkeys(
        ("_labels", "enable_task_events", "enable_tensor_transport"),
        "leave it out, there is no such thing",
    ),
}


def check(given: Mapping[str, object]) -> dict[str, Any]:
    """Check options as users give them; return them without those that are None.

    Raises:
        TypeError: an option of the wrong type.
        ValueError: a value out of range, or an option that does not exist.
    """
    checked: dict[str, Any] = {}
    for spelling, value in given.items():
        option = ALIASES.get(spelling, spelling)
        test = CHECKS.get(option)
        if test is None:
            raise ValueError(unknown(spelling, CHECKS))
        if value is not None:
            test(spelling, value)
            checked[option] = value
    return checked


def resolve(checked: Mapping[str, Any], *, is_generator: bool) -> TaskOptions:
    """Turn checked options into the runtime's terms.

    Args:
        checked: what `check` returned.
        is_generator: whether the function is a generator function.

    Raises:
        ValueError: the options do not fit the function or one another.
    """
    num_returns = _resolve_returns(checked.get("num_returns"), is_generator)
    backpressure = checked.get("generator_backpressure_num_objects", 0)
    if backpressure and num_returns != STREAMING:
        raise ValueError(
            "generator_backpressure_num_objects is of use to streaming generators only"
        )
    retry = checked.get("retry_exceptions", False)
    needs = _resolve_resources(checked)
    return TaskOptions(
        resources=needs,
        num_returns=num_returns,
        max_retries=checked.get("max_retries", DEFAULT_MAX_RETRIES),
        retry_exceptions=retry if isinstance(retry, bool) else tuple(retry),
        # A process that has used a device sees no other one, and keeps its memory.
        max_calls=checked.get("max_calls", int(resources.GPU in needs)),
        name=checked.get("name", ""),
        runtime_env=runtime_env.normalize(checked.get("runtime_env")),
        strategy=resolve_strategy(checked, needs),
        backpressure=backpressure,
        inherits=may_be_captured(checked),
        timeout_s=float(checked.get("timeout_s", 0)),
    )


def _resolve_returns(asked: object, is_generator: bool) -> int:
    if asked is None:
        return STREAMING if is_generator else 1
    if asked == "streaming":
        if not is_generator:
            raise ValueError("num_returns='streaming' needs a generator function")
        return STREAMING
    if asked == "dynamic":
        return DYNAMIC
    assert isinstance(asked, int)
    return asked


def _resolve_resources(checked: Mapping[str, Any]) -> resources.Vector:
    amounts = {resources.CPU: 1, **checked.get("resources", {})}
    for name, option in RESERVED.items():
        if option in checked:
            amounts[name] = checked[option]
    return resources.from_user(amounts)


def may_be_captured(checked: Mapping[str, Any]) -> bool:
    """Tell if the parent's placement group may say where this runs."""
    return not {"scheduling_strategy", "label_selector"} & checked.keys()


def resolve_strategy(checked: Mapping[str, Any], needs: resources.Vector) -> Strategy:
    """Turn ``scheduling_strategy`` and ``label_selector`` into the runtime's terms.

    Raises:
        ValueError: ``needs`` do not fit into any bundle of a placement group, or the
            selector comes with one, whose bundles have their places.
    """
    asked = checked.get("scheduling_strategy")
    selector = labels.from_user(checked.get("label_selector", {}))
    if isinstance(asked, PlacementGroupSchedulingStrategy):
        if asked.placement_group is None:
            return Strategy(labels=selector)
        if selector:
            raise ValueError(
                "label_selector does not go with a placement group, whose bundles have"
                " their places: give placement_group a bundle_label_selector"
            )
        asked.check_room(needs)
        return Strategy(
            "GROUP",
            group_id=asked.placement_group.id,
            bundle=asked.placement_group_bundle_index,
            capture=asked.placement_group_capture_child_tasks,
        )
    if isinstance(asked, NodeAffinitySchedulingStrategy):
        node_id = bytes.fromhex(asked.node_id)
        return Strategy("NODE", node_id, asked.soft, labels=selector)
    return Strategy(asked or "DEFAULT", labels=selector)


def check_cluster(checked: Mapping[str, Any], runtime: Any) -> None:
    """Raise `PlacementGroupRemovedError` if the options name a group of elsewhere."""
    asked = checked.get("scheduling_strategy")
    if isinstance(asked, PlacementGroupSchedulingStrategy) and asked.placement_group:
        asked.placement_group.check_cluster(runtime)


def unknown(option: object, known: Iterable[str]) -> str:
    """Return what to say of an option that there is not."""
    instead = INSTEAD.get(str(option))
    near = get_close_matches(str(option), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    hint = f"; {instead}" if instead else hint
    return f"unknown option {option!r}{hint} (known: {', '.join(sorted(known))})"
