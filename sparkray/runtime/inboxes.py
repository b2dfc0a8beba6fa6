"""Objects that other processes make in this process's name.

    owner                              maker, anywhere in the cluster
      open  ── prefix of ids ──>         write: into the store of its node,
      take <── id, node, size ──                under an id with that prefix
      close: frees, on all nodes, what was not taken; refuses what comes later

How prefix and answer travel is the caller's business (with Spark: in the closure of a
task, and in its rows).  A maker that dies in between leaves an object that nobody knows
of; `close` finds it by its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkray.ids import TASK_ID_BYTES, WORKER_ID_BYTES
from sparkray.protocol.messages import (
    CloseInbox,
    FreeObjects,
    ObjectSource,
    PinObject,
    UnpinObjects,
)
from sparkray.runtime.fetch import Fetcher
from sparkray.runtime.refs import ObjectRef, collecting
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import STORED
from sparkray.store.serialize import serialize


class Inboxes:
    """The part of a runtime that opens inboxes, and writes into those of others."""

    def __init__(self, shared: Shared, fetcher: Fetcher) -> None:
        self._shared = shared
        self._fetcher = fetcher

    def open(self) -> bytes:
        """Return a new prefix: the id of a task that nobody runs."""
        _, object_id = self._shared.new_object_id()
        return object_id[:TASK_ID_BYTES]

    def write(self, object_id: bytes, value: Any) -> tuple[int, ObjectSource]:
        """Put a value into this node's store in the name of the id's owner.

        Returns:
            its size in bytes, and where it is: it is complete, and can be read.

        Raises:
            TypeError: the value holds refs: nobody would count them.
            ObjectStoreFullError: no room.
            ObjectLostError: the inbox was closed.
        """
        with collecting() as met:
            serialized = serialize(value, "the value")
        if met:
            raise TypeError("a value for another process's inbox cannot hold refs")
        agent = self._shared.agent
        self._fetcher.write(object_id, serialized, object_id[:WORKER_ID_BYTES])
        try:
            agent.call(lambda call: PinObject(call, object_id, []))  # so it is there
        except BaseException:
            agent.send(FreeObjects([object_id], []))
            raise
        agent.send(UnpinObjects([object_id]))
        return serialized.size_bytes, self._shared.here()

    def discard(self, object_id: bytes) -> None:
        """Take back what this process has written."""
        self._shared.agent.send(FreeObjects([object_id], []))

    def take(self, object_id: bytes, size: int, source: ObjectSource) -> ObjectRef:
        """Own what was written; once only for each id."""
        shared = self._shared
        with shared.lock:
            entry = shared.own_entry(object_id, STORED, b"")
            entry.local, entry.size, entry.sources = 1, size, [source]
        return ObjectRef(object_id)

    def close(self, prefix: bytes, keep: Sequence[bytes]) -> None:
        """Free what was written under ``prefix`` on any node, all but ``keep``."""
        self._shared.agent.send(CloseInbox(prefix, list(keep)))
