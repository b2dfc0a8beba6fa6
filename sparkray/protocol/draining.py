"""Messages by which a node that nobody needs is asked to leave.

    anyone ──DrainNode──▶ head ──Drain──▶ agent: lends nothing from now on
           ◀─Drained────       ◀─Drained─        and says so, or why it stays
                          head ──Shutdown─▶      (on the agent's stream)

The docstrings follow the form of `protocol.messages`.
"""

from __future__ import annotations

import msgspec


class DrainNode(msgspec.Struct):
    """Anyone -> head: end this node if nobody needs it.

    Repeatable.
    Answer: `Drained`.
    Errors: KeyError (no such node is alive).
    """

    node_id: bytes


class Drain(msgspec.Struct):
    """Head -> agent: if nobody needs you, lend nothing any more and wait for your end.

    Repeatable.
    Answer: `Drained`.
    Errors: none.
    """


class Drained(msgspec.Struct):
    """Agent -> head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    needed_by: str  #: why the node stays; "" if it leaves
