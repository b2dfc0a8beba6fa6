"""Objects made by one process for another, and refs that nobody counts.

For libraries that move data with means of their own, as `sparkray.spark` does in Spark
jobs: there the maker of an object ends long before the object does, and neither calls
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.protocol.messages import ObjectSource
from sparkray.runtime import core, refs

__all__ = ["Inbox", "InboxAddress", "Loan", "Receipt", "nodes_of"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that an object was put into an inbox.

    Attributes:
        object_id: 28 bytes.
        node_id: 28 bytes, the node whose store has the object.
        flight: ``host:port`` of that node's Flight server, "" if it has none yet.
        size_bytes: of the object.
    """

    object_id: bytes
    node_id: bytes
    flight: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """Where other processes put objects for the owner of an `Inbox`.  Picklable."""

    cluster_id: bytes
    prefix: bytes

    def put(self, value: Any, number: int) -> Receipt:
        """Write a value into the store of this node; its owner is the inbox's.

        The value outlives this process.  It is freed when its owner drops the ref that
        it made of the receipt, or closes the inbox without having taken it.

        Args:
            value: whatever `sparkray.put` takes, without refs inside.
            number: from 0 to 2**32 - 1, used once for this inbox in the whole cluster.

        Raises:
            SparkrayError: this process belongs to no cluster, or to another one.
            ObjectStoreFullError: no room could be made.
            ObjectLostError: the inbox was closed.
            TypeError: the value cannot be pickled, or holds refs.
        """
        runtime = core.current()
        if runtime.attached.cluster_id != self.cluster_id:
            raise SparkrayError(
                f"this process belongs to cluster {runtime.attached.cluster_id.hex()},"
                f" the inbox to cluster {self.cluster_id.hex()}"
            )
        object_id = self._id_of(number)
        size_bytes, source = runtime.inboxes.write(object_id, value)
        return Receipt(object_id, source.node_id, source.flight, size_bytes)

    def discard(self, number: int) -> None:
        """Take back what this process has put, for its receipt will not arrive."""
        core.current().inboxes.discard(self._id_of(number))

    def _id_of(self, number: int) -> bytes:
        return self.prefix + number.to_bytes(4, "big")


class Inbox:
    """Takes objects that other processes make in this process's name.

    A context manager: at its end everything that was put and not taken is freed on all
    nodes, and what comes later is refused.

    Attributes:
        address: send it to whoever shall put something in.

    Raises:
        SparkrayError: this process belongs to no cluster.
    """

    def __init__(self) -> None:
        self._runtime = core.current()
        cluster_id = self._runtime.attached.cluster_id
        self.address = InboxAddress(cluster_id, self._runtime.inboxes.open())
        self._taken: set[bytes] = set()
        self._closed = False

    def take(self, receipt: Receipt) -> sparkray.ObjectRef:
        """Return a ref to what was put; each receipt is good for one ref.

        Raises:
            ValueError: it is not from this inbox, was taken, or the inbox is closed.
        """
        object_id = receipt.object_id
        if not object_id.startswith(self.address.prefix):
            raise ValueError(f"object {object_id.hex()} is not from this inbox")
        if self._closed or object_id in self._taken:
            what = "the inbox is closed" if self._closed else "it was taken before"
            raise ValueError(f"object {object_id.hex()} cannot be taken: {what}")
        self._taken.add(object_id)
        source = ObjectSource(receipt.node_id, receipt.flight)
        return self._runtime.inboxes.take(object_id, receipt.size_bytes, source)

    def close(self) -> None:
        """Free what was not taken, everywhere.  Repeatable."""
        if not self._closed:
            self._closed = True
            self._runtime.inboxes.close(self.address.prefix, sorted(self._taken))

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Loan:
    """Stands for a ref in what is pickled by others, and keeps nothing alive.

    Somebody else has to hold the ref for as long as the loan may be used.  (A ref
    itself that is pickled by others keeps its object until the session ends.)
    """

    __slots__ = ("_fields",)

    def __init__(self, ref: sparkray.ObjectRef) -> None:
        owner = ref._owner or core.current().address
        self._fields = (ref.binary(), *refs.fields_of(owner))

    def ref(self) -> sparkray.ObjectRef:
        """Return the ref, in a member of the cluster or in a UDF, which joins it.

        The object may be gone: then using the ref raises `ObjectLostError`.
        """
        load = refs.hooks.load_out_of_band or refs.load_ref
        return load(*self._fields)


def nodes_of(ref: sparkray.ObjectRef) -> list[str]:
    """Return the ids of nodes whose store has the object, in hexadecimal.

    Empty while it does not exist, if it is small and lies with its owner, or if another
    process owns it.
    """
    runtime = core.current()
    with runtime.shared.lock:
        return [node_id.hex() for node_id in runtime.ownership.nodes_of(ref)]
