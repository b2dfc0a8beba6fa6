"""All messages, and hypothesis strategies for them."""

from __future__ import annotations

import types
import typing
from typing import Any, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from sparkray.protocol import control, messages

CHANNEL = get_args(messages.ChannelMessage)
CONTROL = sorted(
    {
        kind
        for calls in (control.HEAD_CALLS, control.HEAD_AGENT_CALLS, control.AGENT_CALLS)
        for pair in calls.values()
        for kind in pair
    }
    | {control.UpItem, control.DownItem},
    key=lambda kind: kind.__name__,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field's type."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return instances(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, inner))
    if origin is list:
        return st.lists(values(inner[0]), max_size=2)
    if origin is tuple and inner[1:] == (...,):
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    assert origin is dict, f"no strategy for {kind}"
    return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f: values(hints[f]) for f in kind.__struct_fields__})
