"""Whether somebody needs this node, and how it stops being of use to anybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from sparkray.agent.leasing import LeaseDesk
from sparkray.agent.members import Member
from sparkray.agent.objects import ObjectDesk
from sparkray.protocol import control
from sparkray.words import counted

_log = logging.getLogger(__name__)

#: A node that agreed to leave does so by itself if the head does not say when.
LEAVE_WITHIN_S: Final = 10.0


class DrainDesk:
    """Answers the head's `Drain`.

    Args:
        members: the runtimes attached to this node.
        list_objects: asks them for the objects that they own.
        leave: ends this node.
    """

    def __init__(
        self,
        members: Mapping[bytes, Member],
        leases: LeaseDesk,
        objects: ObjectDesk,
        list_objects: Callable[[], Awaitable[control.ObjectList]],
        leave: Callable[[str], None],
    ) -> None:
        self._members, self._leases, self._objects = members, leases, objects
        self._list_objects, self._leave = list_objects, leave
        self.leaving = False  #: it was agreed to

    def needed_by(self) -> str:
        """Say who needs this node, as far as the agent knows by itself; "" if nobody.

        Idle workers may own small objects besides: only they know of these.
        """
        table = self._leases.table
        if table.held:
            return counted(len(table.held), "lease")
        if table.waiting:
            return counted(len(table.waiting), "waiting request")
        if table.bundles.here or table.claims:
            return "a placement group"
        if self._leases.foreign:
            return "leases of its runtimes on other nodes"
        attached = {member.kind for member in self._members.values()} - {"worker"}
        if attached:
            return " and ".join(f"an attached {kind}" for kind in sorted(attached))
        return "objects in its store" if self._objects.has_originals else ""

    async def drain(self) -> str:
        """Lend nothing any more, if nobody needs this node; return who does.

        While the workers are asked nothing is lent either: what was true at first is
        true at the end.
        """
        if self.leaving:
            return ""
        reason = self.needed_by()
        if reason:
            return reason
        self._leases.closed = True
        try:
            reason = await self._owned() or self.needed_by()
        except BaseException:
            self._leases.closed = False
            raise
        if reason:
            self._leases.closed = False
            return reason
        self.leaving = True
        loop = asyncio.get_running_loop()
        loop.call_later(LEAVE_WITHIN_S, self._leave, "nobody needed this node")
        return ""

    async def _owned(self) -> str:
        listed = await self._list_objects()
        if listed.missing:
            return f"{listed.missing[0]}, which does not answer"
        owned = sum(
            bool(row.local_refs or row.borrowers or row.task_pins)
            for row in listed.rows
        )
        return f"{counted(owned, 'object')} of its workers" if owned else ""
