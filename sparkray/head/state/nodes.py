"""The life of each node, as the head sees it.  Pure.

              Registered             StreamOpened              StreamBroken
    (nothing) ---------->  JOINING  ------------>  CONNECTED  ------------>  AWAY
                              |                     |     ^ StreamOpened      |
                              |     node_timeout_s  |     +-------------------+
                              |      without report |                         |
                              +--------> DEAD <-----+-------------------------+
                          reconnect_s without a stream, or Gone

After the head itself has died and started again, the nodes that lived are EXPECTED
until they register again, or for ``node_timeout_s``.

A node that was declared dead stays dead: others have drawn their conclusions.  It is
told so when it comes back, and must start anew under another id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from sparkray.protocol.control import NodeInfo, NodeReport

#: How many dead nodes are still listed; the first that joined are forgotten first.
MAX_DEAD: Final = 1_000


class NodeState(enum.Enum):
    JOINING = "joining"
    """Registered; its stream is to come."""
    CONNECTED = "connected"
    """Its stream is open and its reports come in time."""
    AWAY = "away"
    """Its stream broke a moment ago; it may come back."""
    DEAD = "dead"
    """Final: declared dead, and all others were told."""
    EXPECTED = "expected"
    """It lived when the head died; it registers again soon, or is dead as well."""


class Registered(msgspec.Struct, frozen=True):
    """Event: the agent says who it is; again after each loss of its connection."""

    info: NodeInfo
    now_s: float


class StreamOpened(msgspec.Struct, frozen=True):
    """Event: the node's stream number ``stream`` is open; it replaces earlier ones."""

    stream: int
    now_s: float


class Reported(msgspec.Struct, frozen=True):
    """Event: a report arrived."""

    report: NodeReport
    now_s: float


class StreamBroken(msgspec.Struct, frozen=True):
    """Event: stream number ``stream`` ended."""

    stream: int
    now_s: float


class Gone(msgspec.Struct, frozen=True):
    """Event: something proves that the node is gone for good."""

    reason: str


class Kept(msgspec.Struct, frozen=True):
    """Event: the node was asked to leave, and somebody needs it after all."""

    now_s: float


class Tick(msgspec.Struct, frozen=True):
    """Event: time has passed."""

    now_s: float


class ViewChanged(msgspec.Struct, frozen=True):
    """Effect: the view of the cluster differs from the one that was sent last."""


class DeclareDead(msgspec.Struct, frozen=True):
    """Effect: tell everybody, end the jobs of its drivers."""

    node_id: bytes
    reason: str


Event: TypeAlias = (
    Registered | StreamOpened | Reported | StreamBroken | Gone | Kept | Tick
)
Effect: TypeAlias = ViewChanged | DeclareDead


class InvalidTransition(AssertionError):
    """An event that cannot happen in this state: a bug, so it carries the story."""


class NodeMachine:
    """One node.

    Args:
        info: as it registered.
        now_s: the monotonic clock.
        node_timeout_s: a connected node that is silent for longer is dead.
        reconnect_s: a node without a stream for longer is dead.
    """

    def __init__(
        self, info: NodeInfo, now_s: float, node_timeout_s: float, reconnect_s: float
    ) -> None:
        self.info = info
        self.now_s = now_s  #: of the last sign of life, or of the loss of the stream
        self.node_timeout_s = node_timeout_s
        self.reconnect_s = reconnect_s
        self.state = NodeState.JOINING
        self.stream = 0
        self.demand: list[tuple[dict[str, int], int]] = []
        self.idle_since_s: float | None = None  #: None: somebody needs it
        self.story: list[str] = []  #: one line for each change of state

    def handle(self, event: Event) -> list[Effect]:
        """Apply one event; return what the caller must now do, in that order.

        Raises:
            InvalidTransition: the event cannot happen now.  Nothing has changed.
        """
        rule = RULES.get((self.state, type(event)))
        if rule is None:
            raise InvalidTransition(f"{event} in {self.state}; so far: {self.story}")
        before = self.state
        effects = rule(self, event)
        if self.state is not before:
            self.story.append(f"{type(event).__name__}: {self.state.name}")
            del self.story[:-20]
        return effects

    def _return(self, event: Registered) -> list[Effect]:
        self.state = NodeState.JOINING
        return self._register(event)

    def _check_return(self, event: Tick) -> list[Effect]:
        if event.now_s - self.now_s < self.node_timeout_s:
            return []
        return self._die("it did not come back when the head did")

    def _register(self, event: Registered) -> list[Effect]:
        self.info, self.now_s = event.info, event.now_s
        return [ViewChanged()]

    def _open(self, event: StreamOpened) -> list[Effect]:
        self.state, self.stream, self.now_s = (
            NodeState.CONNECTED,
            event.stream,
            event.now_s,
        )
        return []

    def _report(self, event: Reported) -> list[Effect]:
        self.now_s = event.now_s
        self.demand = event.report.demand
        if event.report.needed_by:
            self.idle_since_s = None
        elif self.idle_since_s is None:
            self.idle_since_s = event.now_s
        available, lent = event.report.available, event.report.lent
        if (available, lent) == (self.info.available, self.info.lent):
            return []
        self.info = msgspec.structs.replace(self.info, available=available, lent=lent)
        return [ViewChanged()]

    def _break(self, event: StreamBroken) -> list[Effect]:
        if event.stream == self.stream:
            self.state, self.now_s = NodeState.AWAY, event.now_s
            self.idle_since_s = None  # until it says so again
        return []

    def _keep(self, event: Kept) -> list[Effect]:
        if self.idle_since_s is not None:
            self.idle_since_s = event.now_s
        return []

    def _check_reports(self, event: Tick) -> list[Effect]:
        silent_s = event.now_s - self.now_s
        if silent_s < self.node_timeout_s:
            return []
        return self._die(f"no report for {silent_s:.1f} s")

    def _check_stream(self, event: Tick) -> list[Effect]:
        if event.now_s - self.now_s < min(self.reconnect_s, self.node_timeout_s):
            return []
        return self._die("its connection broke and did not come back")

    def _leave(self, event: Gone) -> list[Effect]:
        return self._die(event.reason)

    def _die(self, reason: str) -> list[Effect]:
        self.state, self.demand, self.idle_since_s = NodeState.DEAD, [], None
        self.info = msgspec.structs.replace(
            self.info, alive=False, available={}, reason=reason
        )
        return [DeclareDead(self.info.node_id, reason), ViewChanged()]

    def _ignore(self, event: Event) -> list[Effect]:
        return []


_M = NodeMachine
_J, _C, _A, _D, _E = NodeState
#: (state, event) -> rule.  What is missing cannot happen: `NodeTable.register` refuses
#: the dead, and a report comes by an open stream only.
RULES: Final[Mapping[tuple[NodeState, type], Callable[[Any, Any], list[Effect]]]] = {
    (_J, Registered): _M._register,
    (_J, StreamOpened): _M._open,
    (_J, StreamBroken): _M._ignore,
    (_J, Gone): _M._leave,
    (_J, Kept): _M._ignore,
    (_J, Tick): _M._check_stream,
    (_C, Registered): _M._register,
    (_C, StreamOpened): _M._open,
    (_C, Reported): _M._report,
    (_C, StreamBroken): _M._break,
    (_C, Gone): _M._leave,
    (_C, Kept): _M._keep,
    (_C, Tick): _M._check_reports,
    (_A, Registered): _M._register,
    (_A, StreamOpened): _M._open,
    (_A, Reported): _M._ignore,
    (_A, StreamBroken): _M._ignore,
    (_A, Gone): _M._leave,
    (_A, Kept): _M._ignore,
    (_A, Tick): _M._check_stream,
    (_E, Registered): _M._return,
    (_E, StreamOpened): _M._open,
    (_E, StreamBroken): _M._ignore,
    (_E, Gone): _M._leave,
    (_E, Kept): _M._ignore,
    (_E, Tick): _M._check_return,
    (_D, StreamOpened): _M._ignore,
    (_D, Reported): _M._ignore,
    (_D, StreamBroken): _M._ignore,
    (_D, Gone): _M._ignore,
    (_D, Kept): _M._ignore,
    (_D, Tick): _M._ignore,
}


class NodeTable:
    """All nodes, dead ones too.

    Args:
        node_timeout_s, reconnect_s: as for `NodeMachine`.
    """

    def __init__(self, *, node_timeout_s: float, reconnect_s: float) -> None:
        self._node_timeout_s = node_timeout_s
        self._reconnect_s = reconnect_s
        self._nodes: dict[bytes, NodeMachine] = {}
        self.changed: set[bytes] = set()  #: what `state.saved` has to write

    def restore(self, nodes: Iterable[NodeInfo], now_s: float) -> None:
        """Take what an earlier head wrote: the living are expected back, the dead stay
        dead."""
        for info in nodes:
            # What is free there, only its next report says.
            info = msgspec.structs.replace(info, available={}, lent={})
            node = NodeMachine(info, now_s, self._node_timeout_s, self._reconnect_s)
            node.state = NodeState.EXPECTED if info.alive else NodeState.DEAD
            self._nodes[info.node_id] = node

    def register(self, info: NodeInfo, now_s: float) -> list[Effect]:
        """Take a node in, or update its row.

        Raises:
            ValueError: it was declared dead; says why.
        """
        node = self._nodes.get(info.node_id)
        self.changed.add(info.node_id)
        if node is not None and node.state is NodeState.DEAD:
            raise ValueError(
                f"node {info.node_id.hex()} was declared dead ({node.info.reason}):"
                " start it anew"
            )
        if node is not None:
            return node.handle(Registered(info, now_s))
        self._nodes[info.node_id] = NodeMachine(
            info, now_s, self._node_timeout_s, self._reconnect_s
        )
        self._forget_old()
        return [ViewChanged()]

    def handle(self, node_id: bytes, event: Event) -> list[Effect]:
        """Apply an event to one node; one that is not known is ignored."""
        node = self._nodes.get(node_id)
        return self._noted(node.handle(event)) if node is not None else []

    def tick(self, now_s: float, paused_s: float = 0.0) -> list[Effect]:
        """Let time pass.

        Args:
            paused_s: for so long the head itself stood still just before: it heard
                nobody, which says nothing about the nodes.
        """
        for node in self._living() if paused_s else ():
            node.now_s = min(now_s, node.now_s + paused_s)
        return self._noted(
            [
                effect
                for node in list(self._nodes.values())
                for effect in node.handle(Tick(now_s))
            ]
        )

    def state(self, node_id: bytes) -> NodeState | None:
        node = self._nodes.get(node_id)
        return node.state if node is not None else None

    def get(self, node_id: bytes) -> NodeInfo | None:
        node = self._nodes.get(node_id)
        return node.info if node is not None else None

    def all(self) -> list[NodeInfo]:
        return [node.info for node in self._nodes.values()]

    def alive(self) -> list[NodeInfo]:
        return [node.info for node in self._living()]

    def demand(self) -> list[tuple[dict[str, int], int]]:
        """Return the waiting requests of all nodes, equal shapes together."""
        shapes: dict[tuple[tuple[str, int], ...], int] = {}
        for node in self._living():
            for shape, count in node.demand:
                key = tuple(sorted(shape.items()))
                shapes[key] = shapes.get(key, 0) + count
        return [(dict(key), count) for key, count in shapes.items()]

    def idle_s(self, now_s: float) -> dict[bytes, float]:
        """Return the nodes that nobody needs, and for how long that is so."""
        return {
            node.info.node_id: now_s - node.idle_since_s
            for node in self._living()
            if node.idle_since_s is not None
        }

    def dead(self) -> list[NodeInfo]:
        return [node.info for node in self._nodes.values() if not node.info.alive]

    def _noted(self, effects: list[Effect]) -> list[Effect]:
        self.changed |= {e.node_id for e in effects if isinstance(e, DeclareDead)}
        return effects

    def _living(self) -> Iterator[NodeMachine]:
        return (
            node for node in self._nodes.values() if node.state is not NodeState.DEAD
        )

    def _forget_old(self) -> None:
        dead = [id_ for id_, node in self._nodes.items() if not node.info.alive]
        for node_id in dead[:-MAX_DEAD]:
            del self._nodes[node_id]
            self.changed.add(node_id)
