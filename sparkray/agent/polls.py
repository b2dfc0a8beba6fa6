"""Questions that an agent asks all its runtimes at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

from sparkray.agent.members import Member

#: Calls of the agent are numbered from here, those of runtimes from 1: a runtime may
#: take any message with a number that it waits for as the answer.
FIRST_NUMBER: Final = 1 << 48
#: How long runtimes may take to answer.
POLL_S: Final = 2.0


class Polls:
    """Pairs answers with questions."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(FIRST_NUMBER)

    async def ask(
        self, members: Iterable[Member], question: Callable[[int], object]
    ) -> tuple[list[tuple[Member, Any]], list[Member]]:
        """Return the answers of those that gave one in time, and the others.

        Args:
            question: makes the message of a number.
        """
        loop = asyncio.get_running_loop()
        asked: dict[int, Member] = {}
        for member in members:
            number = next(self._numbers)
            asked[number] = member
            self._waiting[number] = loop.create_future()
            member.channel.send(question(number))
        if asked:
            futures = [self._waiting[number] for number in asked]
            await asyncio.wait(futures, timeout=POLL_S)
        answers: list[tuple[Member, Any]] = []
        late: list[Member] = []
        for number, member in asked.items():
            waiting = self._waiting.pop(number)
            if waiting.done():
                answers.append((member, waiting.result()))
            elif member.channel.is_open:
                late.append(member)
        return answers, late

    def answered(self, member: Member, message: Any) -> None:
        """Take an answer; one that comes too late is dropped."""
        waiting = self._waiting.get(message.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
