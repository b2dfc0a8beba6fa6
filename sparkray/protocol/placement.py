"""Messages about placement groups: who wants one, where its bundles are.

    creator's runtime --CreatePlacementGroup--> head --ReserveBundles--> agents
    head --GroupRow on every agent's stream--> lease requests find their bundles

The docstrings follow the form of `protocol.messages`.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: States of a group, as told to everybody.
PENDING: Final = "PENDING"
CREATED: Final = "CREATED"
RESCHEDULING: Final = "RESCHEDULING"
REMOVED: Final = "REMOVED"

#: How the bundles of a group are laid on nodes.
PACK: Final = "PACK"
SPREAD: Final = "SPREAD"
STRICT_PACK: Final = "STRICT_PACK"
STRICT_SPREAD: Final = "STRICT_SPREAD"
STRATEGIES: Final = (PACK, SPREAD, STRICT_PACK, STRICT_SPREAD)


class GroupRow(msgspec.Struct, frozen=True):
    """A placement group as the head knows it.  Part of other messages; an answer."""

    group_id: bytes
    version: int  #: grows with every change
    state: str
    name: str
    namespace: str
    strategy: str
    bundles: list[dict[str, int]]  #: what each reserves, in 1/10,000
    nodes: list[bytes]  #: where each is; b"" while it has no place
    detached: bool
    job_id: bytes


class CreatePlacementGroup(msgspec.Struct):
    """Anyone -> head: reserve these bundles as soon as they fit.

    Repeatable: a known ``group_id`` gets its row again.
    Answer: `GroupRow`, before anything is reserved.
    Errors: ValueError (the name is taken).
    """

    group_id: bytes
    job_id: bytes
    name: str
    namespace: str
    strategy: str
    bundles: list[dict[str, int]]
    detached: bool
    #: By bundle, which nodes will do, see `sparkray.labels`; empty: all will for all.
    selectors: list[tuple[tuple[str, str], ...]] = []


class GetPlacementGroup(msgspec.Struct):
    """Anyone -> head: the group of this id or, with an empty id, of this name.

    Repeatable.
    Answer: `GroupRow`.
    Errors: ValueError (there is none).
    """

    group_id: bytes
    name: str = ""
    namespace: str = ""


class WaitPlacementGroup(msgspec.Struct):
    """Anyone -> head: answer once the group is created or removed, or time is over.

    Repeatable.
    Answer: `GroupRow`.
    Errors: ValueError (there is no such group).
    """

    group_id: bytes
    wait_s: float


class ListPlacementGroups(msgspec.Struct):
    """Anyone -> head: all groups, removed ones too (the last thousand).

    Repeatable.
    Answer: `GroupList`.
    Errors: none.
    """


class GroupList(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    groups: list[GroupRow]


class RemovePlacementGroup(msgspec.Struct):
    """Anyone -> head: end what runs inside the group, and free what it reserves.

    Repeatable: a removed or unknown group is left alone.
    Answer: `Ok`, once the group is marked as removed.
    Errors: none.
    """

    group_id: bytes


class ReserveBundles(msgspec.Struct):
    """Head -> agent: set these bundles aside, all or none.

    Repeatable: bundles of the same attempt are reserved once.
    Answer: `BundlesReserved`.
    Errors: none.
    """

    group_id: bytes
    attempt: int  #: grows; one that was returned is not reserved any more
    bundles: dict[int, dict[str, int]]  #: by their index in the group
    wait_s: float = 0.0  #: so long the agent keeps for them what comes free


class BundlesReserved(msgspec.Struct):
    """Agent -> head.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    reserved: bool


class ReturnBundles(msgspec.Struct):
    """Head -> agent: end what runs in these bundles; they are not wanted any more.

    Repeatable: what is not there is ignored.  Bundles of a later attempt stay.
    Answer: `Ok`.
    Errors: none.
    """

    group_id: bytes
    attempt: int
    indexes: list[int]
    reason: str
