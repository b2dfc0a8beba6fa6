"""Placement groups: bundles of resources that are reserved together.

    group = placement_group([{"CPU": 2}, {"CPU": 2, "GPU": 1}], strategy="SPREAD")
    get(group.ready())
    f.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 1)).remote()

The head reserves all bundles of a group, or none; tasks and actors inside use what is
reserved, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sparkray import resources
from sparkray.api import session
from sparkray.api.placement_handle import PlacementGroup
from sparkray.ids import new_group_id
from sparkray.labels import Selector, from_user
from sparkray.protocol import placement as p
from sparkray.runtime.context import running

LIFETIMES: Final = (None, "detached", "non_detached")


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    *,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
) -> PlacementGroup:
    """Reserve bundles of resources, all together; returns at once.

    What does not fit now waits until it does; see `PlacementGroup.ready`.

    Args:
        bundles: resources by name, e.g. ``[{"CPU": 2}, {"CPU": 1, "GPU": 1}]``; a
            bundle lies on one node.
        strategy: ``"PACK"`` uses few nodes and ``"SPREAD"`` many, as far as there is
            room; ``"STRICT_PACK"`` exactly one, ``"STRICT_SPREAD"`` one for each
            bundle.
        name: for `get_placement_group`, in the namespace of this job.
        lifetime: ``"detached"``: it stays when the job ends.
        bundle_label_selector: for each bundle which nodes will do, as the option
            ``label_selector`` of tasks: e.g. ``[{"zone": "a"}, {}]``.

    Raises:
        TypeError: ``name`` is not text, or ``bundle_label_selector`` no list of dicts.
        ValueError: wrong bundles, strategy, lifetime or selectors; the name is taken.
    """
    vectors = _check_bundles(bundles)
    if not isinstance(strategy, str) or strategy not in p.STRATEGIES:
        raise ValueError(f"strategy must be one of {p.STRATEGIES}, not {strategy!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be text, not {name!r}")
    if lifetime not in LIFETIMES:
        raise ValueError(f"lifetime must be 'detached' or None, not {lifetime!r}")
    selectors = _check_selectors(bundle_label_selector, len(vectors))
    runtime = session.ensure_runtime()
    row = _ask(
        "CreatePlacementGroup",
        p.CreatePlacementGroup(
            group_id=new_group_id(),
            job_id=runtime.job_id,
            name=name,
            namespace=runtime.namespace,
            strategy=strategy,
            bundles=vectors,
            detached=lifetime == "detached",
            selectors=selectors,
        ),
    )
    return PlacementGroup(row.group_id, bundles, runtime.attached.cluster_id)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Free what a group reserves; tasks and actors inside are killed.  Repeatable.

    Raises:
        TypeError: not a placement group.
        PlacementGroupRemovedError: it was in another cluster.
    """
    request = p.RemovePlacementGroup(_checked(placement_group).id)
    runtime = session.ensure_runtime()
    placement_group.check_cluster(runtime)
    runtime.head_call("RemovePlacementGroup", request)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group of a name in the namespace of this job.

    Raises:
        ValueError: there is none; names the namespace that was searched.
    """
    if not isinstance(placement_group_name, str) or not placement_group_name:
        raise ValueError(
            f"a placement group's name is expected, not {placement_group_name!r}"
        )
    namespace = session.ensure_runtime().namespace
    request = p.GetPlacementGroup(b"", placement_group_name, namespace)
    return _from_row(_ask("GetPlacementGroup", request))


def get_current_placement_group() -> PlacementGroup | None:
    """Return the group that this task or actor runs in; None outside of groups."""
    group_id = current_group_id()
    if not group_id:
        return None
    return _from_row(_ask("GetPlacementGroup", p.GetPlacementGroup(group_id)))


def current_group_id() -> bytes:
    """Return the id of the group that the calling code runs in; b"" outside of any."""
    if running.actor is not None:
        return running.actor.strategy.group_id
    return running.task.group_id if running.task is not None else b""


def placement_group_table(
    placement_group: PlacementGroup | None = None,
) -> dict[str, Any]:
    """Describe one group, or all of them by their ids in hexadecimal.

    Keys: ``placement_group_id`` (hexadecimal), ``name``, ``namespace``, ``strategy``,
    ``state`` ("PENDING", "CREATED", "RESCHEDULING" or "REMOVED"), ``bundles`` (index to
    resources), ``bundles_to_node_id`` (index to a node id in hexadecimal, "" while it
    has no place), ``is_detached``.

    Raises:
        TypeError: not a placement group.
        ValueError: the head knows no such group.
    """
    if placement_group is not None:
        request = p.GetPlacementGroup(_checked(placement_group).id)
        return _describe(_ask("GetPlacementGroup", request))
    runtime = session.ensure_runtime()
    listed = runtime.head_call("ListPlacementGroups", p.ListPlacementGroups())
    assert isinstance(listed, p.GroupList)
    return {row.group_id.hex(): _describe(row) for row in listed.groups}


def _check_bundles(bundles: object) -> list[resources.Vector]:
    if isinstance(bundles, (str, bytes)) or not isinstance(bundles, Sequence):
        raise ValueError(f"bundles must be a list of dicts, not {bundles!r:.100}")
    if not bundles:
        raise ValueError("bundles must hold one bundle at least")
    return [_check_bundle(index, bundle) for index, bundle in enumerate(bundles)]


def _check_bundle(index: int, bundle: object) -> resources.Vector:
    if not isinstance(bundle, Mapping):
        raise ValueError(
            f"bundle {index} must be a dict of name to number, not {bundle!r:.100}"
        )
    for name in bundle:
        if not isinstance(name, str) or not name:
            raise ValueError(f"bundle {index}: {name!r} is no resource's name")
    try:
        vector = resources.from_user(bundle)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bundle {index}: {error}") from None
    if not vector:
        raise ValueError(f"bundle {index} reserves nothing: {dict(bundle)!r:.100}")
    return vector


def _check_selectors(given: object, count: int) -> list[Selector]:
    option = "bundle_label_selector"
    if given is None:
        return []
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise TypeError(f"{option} must be a list of dicts, not {given!r:.100}")
    if len(given) != count:
        raise ValueError(f"{option} must hold one dict for each of {count} bundles")
    return [
        from_user(selector, f"{option}[{index}]")
        for index, selector in enumerate(given)
    ]


def _checked(group: object) -> PlacementGroup:
    if not isinstance(group, PlacementGroup):
        raise TypeError(f"a placement group is expected, not {group!r:.100}")
    return group


def _ask(method: str, request: Any) -> p.GroupRow:
    row = session.ensure_runtime().head_call(method, request)
    assert isinstance(row, p.GroupRow)
    return row


def _from_row(row: p.GroupRow) -> PlacementGroup:
    bundles = [resources.to_user(bundle) for bundle in row.bundles]
    cluster = session.ensure_runtime().attached.cluster_id
    return PlacementGroup(row.group_id, bundles, cluster)


def _describe(row: p.GroupRow) -> dict[str, Any]:
    bundles = enumerate(row.bundles)
    return {
        "placement_group_id": row.group_id.hex(),
        "name": row.name,
        "namespace": row.namespace,
        "strategy": row.strategy,
        "state": row.state,
        "bundles": {index: resources.to_user(bundle) for index, bundle in bundles},
        "bundles_to_node_id": {
            index: node_id.hex() for index, node_id in enumerate(row.nodes)
        },
        "is_detached": row.detached,
    }
