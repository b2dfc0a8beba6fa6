"""Messages that ask every process of a cluster what it does at this moment.

command line ──ListStacks──▶ head ──ListStacks──▶ agents ──DumpStacks──▶ runtimes
             ◀──StackList──      ◀──StackList──          ◀─StacksDumped─
"""

from __future__ import annotations

import msgspec


class ProcessStacks(msgspec.Struct, array_like=True):
    """The threads of one process."""

    kind: str  #: "head", "node", "driver", "worker" or "udf"
    host_name: str
    pid: int
    threads: list[tuple[str, str]]  #: name and stack


class DumpStacks(msgspec.Struct, array_like=True, tag=100):
    """Agent -> runtime: what do your threads do?

    Repeatable.
    Answer: `StacksDumped`.
    Errors: none.
    """

    call: int


class StacksDumped(msgspec.Struct, array_like=True, tag=101):
    """Runtime -> its agent: this.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    threads: list[tuple[str, str]]  #: name and stack


class ListStacks(msgspec.Struct):
    """Anyone -> head -> all agents: the stacks of all processes.

    Repeatable.
    Answer: `StackList`.
    Errors: none; nodes and processes that do not answer are named.
    """


class StackList(msgspec.Struct):
    """Agent -> head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    processes: list[ProcessStacks]
    missing: list[str]
