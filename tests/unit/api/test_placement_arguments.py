"""Wrong placement groups: each is refused at the call, before anything is started."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparkray.runtime import core
from sparkray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)


@pytest.mark.parametrize(
    ("bundles", "says"),
    [
        ([], "one bundle at least"),
        ("CPU", "list of dicts"),
        ({"CPU": 1}, "list of dicts"),
        ([{"CPU": 1}, 5], "bundle 1 must be a dict"),
        ([{}], "bundle 0 reserves nothing"),
        ([{"CPU": 0}], "bundle 0 reserves nothing"),
        ([{"CPU": 1}, {"CPU": -1}], "bundle 1"),
        ([{"CPU": math.nan}], "bundle 0"),
        ([{"CPU": math.inf}], "bundle 0"),
        ([{"CPU": "1"}], "bundle 0"),
        ([{"": 1}], "no resource's name"),
        ([{5: 1}], "no resource's name"),
    ],
)
def test_wrong_bundles_are_named(bundles: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        placement_group(bundles)
    assert core.current_or_none() is None


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"strategy": "NEAR"}, ValueError, "strategy must be one of"),
        ({"strategy": None}, ValueError, "strategy must be one of"),
        ({"lifetime": "eternal"}, ValueError, "lifetime"),
        ({"name": 5}, TypeError, "name must be text"),
    ],
)
def test_wrong_options_are_named(
    options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        placement_group([{"CPU": 1}], **options)
    assert core.current_or_none() is None


@pytest.mark.parametrize("call", [remove_placement_group, placement_group_table])
def test_what_is_no_group_is_refused(call: Any) -> None:
    with pytest.raises(TypeError, match="placement group is expected"):
        call("group")


@pytest.mark.parametrize("name", ["", 5])
def test_a_group_is_looked_for_by_its_name(name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="name"):
        get_placement_group(name)
