"""Label selectors: what is one, and which nodes match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray import labels
from sparkray.labels import from_user, matches

names = st.sampled_from(["zone", "tier", "disk"])
values = st.sampled_from(["a", "b", "c", "in", "inner", "us-east.1", "two words"])
nodes = st.dictionaries(names, values)


@given(node=nodes, name=names, value=values)
def test_a_value_matches_what_is_equal_and_its_negation_everything_else(
    node: dict[str, str], name: str, value: str
) -> None:
    equal = matches(from_user({name: value}), node)
    assert equal is (node.get(name) == value)
    assert matches(from_user({name: f"!{value}"}), node) is not equal


@given(
    node=nodes,
    name=names,
    several=st.lists(values, min_size=1),
    gap=st.text(" ", max_size=2),
)
def test_a_set_matches_as_any_of_its_values_does(
    node: dict[str, str], name: str, several: list[str], gap: str
) -> None:
    listed = "(" + f"{gap},{gap}".join(several) + ")"
    expected = any(matches(from_user({name: value}), node) for value in several)
    assert matches(from_user({name: f"in{gap}{listed}{gap}"}), node) is expected
    assert matches(from_user({name: f"{gap}!{gap}in{listed}"}), node) is not expected


@given(node=nodes, selector=nodes, other=nodes)
def test_all_conditions_of_a_selector_must_hold(
    node: dict[str, str], selector: dict[str, str], other: dict[str, str]
) -> None:
    both = {**other, **selector}
    alone = [matches(from_user({name: value}), node) for name, value in both.items()]
    assert matches(from_user(both), node) is all(alone)


@given(selector=nodes)
def test_equal_selectors_are_equal_in_whatever_order(selector: dict[str, str]) -> None:
    turned = dict(reversed(selector.items()))
    assert from_user(selector) == from_user(turned)
    assert hash(from_user(selector)) == hash(from_user(turned))


def test_an_empty_selector_matches_every_node() -> None:
    assert from_user({}) == () and matches((), {}) and matches((), {"zone": "a"})


@pytest.mark.parametrize(
    "condition",
    [
        *("", " ", "!", "!!a", "in()", "in(a", "in a)", "in(a,,b)", "in(a, )"),
        *("a,b", "(a)", "in(a)b", "in(a) in(b)", "in((a))", "a!b"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_label_and_what_is_one(
    condition: str,
) -> None:
    with pytest.raises(ValueError, match=r"label_selector\['zone'\].*'!in\(a, b\)'"):
        from_user({"zone": condition})


@pytest.mark.parametrize(
    "selector", ["a=b", ["zone"], {"zone": 1}, {1: "a"}, {"a": None}]
)
def test_what_is_no_dict_of_text_is_a_type_error(selector: Any) -> None:
    with pytest.raises(TypeError, match="option"):
        from_user(selector, "option")


def test_rays_name_of_the_nodes_id_is_ours() -> None:
    assert from_user({"ray.io/node-id": "ab"}) == from_user({labels.NODE_ID: "ab"})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"zone": 1}, TypeError),
        ({1: "a"}, TypeError),
        ("zone", TypeError),
        ({" ": "a"}, ValueError),
        ({"sparkray.io/node-id": "ab"}, ValueError),
    ],
)
def test_labels_that_a_node_may_not_be_given(
    given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="labels"):
        labels.check(given)


def test_the_hint_shows_what_labels_there_are_and_not_too_many() -> None:
    selector = from_user({"zone": "!in(a, b)", "tier": "x"})
    nodes = [(f"h{n}", {"zone": "a", labels.NODE_ID: "ab"}) for n in range(7)]
    text = labels.hint(selector, nodes)
    assert "{tier: x, zone: !in(a, b)}" in text and "h0 has {zone: a};" in text
    assert text.endswith("and 2 more") and "h5" not in text
    asked = labels.hint(from_user({labels.NODE_ID: "cd"}), nodes[:1])
    assert f"{labels.NODE_ID}: ab" in asked
