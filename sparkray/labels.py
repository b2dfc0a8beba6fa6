"""Labels of nodes, and selectors that say which nodes may do.  Pure.

    {"zone": "a", "tier": "!spot", "disk": "in(ssd, nvme)", "arch": "!in(arm, x86)"}

A node that does not have a label is not equal to any value of it: it fails ``a`` and
``in(a)``, and passes ``!a`` and ``!in(a)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

#: Conditions by label, sorted: equal selectors are equal, and can be hashed.
Selector: TypeAlias = tuple[tuple[str, str], ...]

#: The label that every node has: its id in hexadecimal.
NODE_ID: Final = "sparkray.io/node-id"
#: Labels that begin so are not the user's to set.
OWN_PREFIX: Final = "sparkray.io/"
#: Other names of ours, for scripts written for Ray.
ALIASES: Final[Mapping[str, str]] = {"ray.io/node-id": NODE_ID}

_CONDITION: Final = re.compile(
    r"\s*(?P<no>!?)\s*(?:in\s*\((?P<set>[^()]*)\)|(?P<one>[^(),!]+))\s*"
)
#: How many nodes a message describes.
_SHOWN: Final = 5


class _Condition(NamedTuple):
    values: frozenset[str]
    negated: bool


def check(labels: object) -> None:
    """Check the labels that a node is given.

    Raises:
        TypeError: no dict of text to text.
        ValueError: an empty name, or one that only sparkray sets.
    """
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels must be a dict of text to text, not {labels!r}")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"labels must be text, not {name!r}: {value!r}")
        if not name.strip():
            raise ValueError("labels hold one without a name")
        if name.startswith(OWN_PREFIX):
            raise ValueError(
                f"labels that begin with {OWN_PREFIX!r} are set by sparkray itself;"
                f" choose another name: {name!r}"
            )


def from_user(selector: object, option: str = "label_selector") -> Selector:
    """Check a selector as users write it.

    Args:
        option: what to call it in errors.

    Raises:
        TypeError: no dict of text to text.
        ValueError: an empty name, or a condition that is none.
    """
    if not isinstance(selector, Mapping):
        raise TypeError(f"{option} must be a dict of label to text, not {selector!r}")
    checked: dict[str, str] = {}
    for name, condition in selector.items():
        if not isinstance(name, str) or not isinstance(condition, str):
            raise TypeError(f"{option} must hold text, not {name!r}: {condition!r}")
        if not name.strip():
            raise ValueError(f"{option} holds a label without a name")
        try:
            _parse(condition)
        except ValueError as error:
            raise ValueError(f"{option}[{name!r}]: {error}") from None
        checked[ALIASES.get(name, name)] = condition.strip()
    return tuple(sorted(checked.items()))


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Tell if a node with these labels will do."""
    for name, text in selector:
        condition = _parse(text)
        if (labels.get(name) in condition.values) == condition.negated:
            return False
    return True


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Condition:
    found = _CONDITION.fullmatch(text)
    named = [] if found is None else (found["one"] or found["set"]).split(",")
    values = frozenset(value.strip() for value in named)
    if found is None or not values or "" in values:
        raise ValueError(f"{text!r} is none of 'a', '!a', 'in(a, b)' and '!in(a, b)'")
    return _Condition(values, bool(found["no"]))


def describe(selector: Iterable[tuple[str, str]]) -> str:
    """Return e.g. ``{tier: !spot, zone: a}``, for messages."""
    return "{" + ", ".join(f"{name}: {text}" for name, text in selector) + "}"


def hint(selector: Selector, nodes: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Say that no node matches, and what labels there are.

    Args:
        nodes: the name, for people, and the labels of each node.
    """
    asked = dict(selector)
    shown = [
        f"{name} has {describe(sorted(_of_interest(own, asked)))}"
        for name, own in nodes
    ]
    more = len(shown) - _SHOWN
    there = "; ".join(shown[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"label_selector {describe(selector)} matches none of the nodes: {there}"


def _of_interest(
    own: Mapping[str, str], asked: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield labels without our own, which say little, unless these are asked for."""
    for name, value in own.items():
        if name in asked or not name.startswith(OWN_PREFIX):
            yield name, value
