"""Values: `get`, `wait`, `put` and futures, for caller threads.

A caller waits on a lock of its own that the I/O thread releases; Ctrl-C interrupts it.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sparkray.exceptions import GetTimeoutError, TaskError
from sparkray.protocol.messages import (
    AbortObject,
    Argument,
    CreateObject,
    ReturnValue,
    SealObject,
)
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import (
    DynamicObjectRefGenerator,
    ObjectRef,
    ObjectRefGenerator,
    collecting,
)
from sparkray.runtime.resolver import Resolver
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import (
    FAILED,
    INLINE,
    PENDING,
    STORED,
    Entry,
)
from sparkray.runtime.stored import OutOfTime, StoredObjects
from sparkray.runtime.submit import Submitter
from sparkray.runtime.waiter import FutureWaiter, Waiter
from sparkray.runtime.waits import Waits
from sparkray.store.segment import WritableSegments
from sparkray.store.serialize import Serialized, deserialize, serialize
from sparkray.words import counted

#: First byte of the value of a ``num_returns="dynamic"`` task: a list of object ids.
DYNAMIC_KIND: Final = 0x06


class Fetcher:
    """Reads and writes objects for caller threads."""

    def __init__(
        self,
        shared: Shared,
        ownership: Ownership,
        segments: WritableSegments,
        waits: Waits,
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._segments = segments
        self.submitter: Submitter
        self._resolver = Resolver()
        self._waits = waits
        self._stored = StoredObjects(shared, ownership, waits)

    # --- get ---

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """Return the values, in order.

        Raises:
            GetTimeoutError: not all were there in time.
            TaskError, ObjectLostError, ...: the first failure.
        """
        self.submitter.flush()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._shared.lock:
            entries = self._ownership.entries_of(refs)
            pending = [entry for entry in entries if entry.state == PENDING]
            if pending:
                waiter = self._watch(pending, len(pending), stop_on_failure=True)
                story = self._waits.story_of(entries)
        if pending and not self._waits.wait_for(waiter, timeout_s, story):
            self._unwatch(waiter, pending)
            assert timeout_s is not None
            raise GetTimeoutError(timeout_s, story())
        try:
            return self.values_of(entries, deadline_s)
        except OutOfTime:
            assert timeout_s is not None
            text = self._waits.story_of(entries)()
            raise GetTimeoutError(timeout_s, text) from None

    def await_entries(self, entries: Sequence[Entry]) -> None:
        """Wait until all of these are settled, well or badly."""
        with self._shared.lock:
            pending = [entry for entry in entries if entry.state == PENDING]
            waiter = self._watch(pending, len(pending), stop_on_failure=False)
        if pending:
            self._waits.wait_for(waiter, None, self._waits.story_of(entries))

    def values_of(
        self, entries: Sequence[Entry], deadline_s: float | None = None
    ) -> list[Any]:
        """Return the values of settled entries; a failed one raises.

        Raises:
            OutOfTime: what is lost was not made again by the deadline.
        """
        values: list[Any] = []
        for entry in entries:
            if entry.state != INLINE or entry.value[0] == DYNAMIC_KIND:
                return self._values_carefully(entries, deadline_s)
            values.append(deserialize(entry.value))
        return values

    def _values_carefully(
        self, entries: Sequence[Entry], deadline_s: float | None
    ) -> list[Any]:
        for entry in entries:
            if entry.state == FAILED:
                raise self._error_of(entry)
        self._stored.pin_ahead(entries)
        return [self._value_of(entry, deadline_s) for entry in entries]

    def _value_of(self, entry: Entry, deadline_s: float | None = None) -> Any:
        tried: set[bytes] = set()
        while True:
            if entry.state == INLINE:
                value = entry.value
                if value[0] == DYNAMIC_KIND:
                    return self._dynamic(entry)
                return deserialize(value)
            if entry.state == FAILED:
                raise self._error_of(entry)
            view = self._stored.view_of(entry, tried, deadline_s)
            if view is not None:
                return deserialize(view)

    def _error_of(self, entry: Entry) -> BaseException:
        error = deserialize(entry.value)
        if isinstance(error, TaskError):
            return error.as_user_error()
        assert isinstance(error, BaseException)
        return error

    def _dynamic(self, entry: Entry) -> DynamicObjectRefGenerator:
        object_ids: list[bytes] = msgspec.msgpack.decode(entry.value[1:])
        with self._shared.lock:
            for object_id in object_ids:
                self._ownership.adopt(object_id, entry.owner or self._shared.address)
        return DynamicObjectRefGenerator(
            [ObjectRef(object_id, entry.owner) for object_id in object_ids]
        )

    def argument_value(self, argument: Argument) -> Any:
        """Return a task argument that its owner sent or described."""
        if argument.value is not None and argument.value[0] != DYNAMIC_KIND:
            return deserialize(argument.value)
        assert argument.owner is not None
        with self._shared.lock:
            entry = self._shared.table.entries.get(argument.object_id)
            if entry is None:
                entry = self._ownership.borrow(argument.object_id, argument.owner)
            entry.pins += 1
            if entry.state == PENDING and argument.value is None:
                entry.sources = argument.sources
                entry.settle(STORED, b"")
            elif entry.state == PENDING:
                entry.settle(INLINE, argument.value or b"")
        try:
            return self._value_of(entry)
        finally:
            with self._shared.lock:
                self._shared.table.unpin([entry])
                self._shared.settle_releases()

    # --- put ---

    @property
    def inline_max_bytes(self) -> int:
        return self._shared.settings.inline_max_bytes

    def put(self, value: Any) -> ObjectRef:
        with collecting() as met:
            serialized = serialize(value, "the value")
        entry = self.put_serialized(serialized, met, local=1, pins=0)
        return ObjectRef(entry.id)

    def put_serialized(
        self, serialized: Serialized, met: Sequence[ObjectRef], *, local: int, pins: int
    ) -> Entry:
        """Make an owned object that is held by ``local`` refs and ``pins`` pins."""
        shared = self._shared
        _, object_id = shared.new_object_id()
        inline = serialized.size_bytes <= shared.settings.inline_max_bytes
        if not inline:
            self.write(object_id, serialized, shared.address.worker_id)
        value = serialized.to_bytes() if inline else b""
        with shared.lock:
            entry = shared.own_entry(object_id, INLINE if inline else STORED, value)
            entry.local, entry.pins = local, pins
            entry.size = serialized.size_bytes
            if not inline:
                entry.sources = [self._shared.here()]
            if met:
                contained = [self._ownership.entry_of(ref) for ref in set(met)]
                for inner in contained:
                    inner.pins += 1
                entry.contains = contained
        return entry

    def return_value(
        self,
        object_id: bytes,
        index: int,
        serialized: Serialized,
        met: Sequence[ObjectRef],
        owner: Any,
    ) -> ReturnValue:
        """Make the message part of one return value of a task that ``owner`` called."""
        inline = serialized.size_bytes <= self._shared.settings.inline_max_bytes
        if not inline:
            self.write(object_id, serialized, owner.worker_id)
        contains: list[Any] = []
        if met:
            with self._shared.lock:
                entries = [self._ownership.entry_of(ref) for ref in set(met)]
                contains = self._ownership.give_contained(entries, owner)
        return ReturnValue(
            index,
            serialized.to_bytes() if inline else None,
            serialized.size_bytes,
            [] if inline else [self._shared.here()],
            contains,
        )

    def write(self, object_id: bytes, serialized: Serialized, owner: bytes) -> None:
        """Put bytes into the node's store; waits while it is full."""
        shared = self._shared
        shared.drain()  # what was dropped just now makes room
        size = serialized.size_bytes
        try:
            created = shared.agent.call(
                lambda call: CreateObject(call, object_id, size)
            )
            self._segments.write(created.path, created.capacity_bytes, serialized)
        except BaseException:
            shared.agent.send(AbortObject(object_id))
            raise
        shared.agent.send(SealObject(object_id, owner))

    # --- wait ---

    def wait(
        self,
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
    ) -> tuple[list[Any], list[Any]]:
        """Return (ready, others), each in the order given."""
        shared = self._shared
        self.submitter.flush()
        with shared.lock:
            ready = [self._is_ready(item) for item in waitables]
            missing = num_returns - sum(ready)
            pending = [i for i, r in zip(waitables, ready, strict=True) if not r]
            if missing > 0:
                waiter = self._watch_any(pending, missing)
        if missing > 0:
            self._waits.wait_for(waiter, timeout_s, lambda: self._story(pending))
            self._unwatch_any(waiter, pending)
        done: list[Any] = []
        others: list[Any] = []
        with shared.lock:
            for item in waitables:
                enough = len(done) >= num_returns
                (others if enough or not self._is_ready(item) else done).append(item)
        return done, others

    def _is_ready(self, item: ObjectRef | ObjectRefGenerator) -> bool:
        if isinstance(item, ObjectRefGenerator):
            return item._stream.is_ready()
        return self._ownership.entry_of(item).state != PENDING

    def _watch_any(self, items: Sequence[Any], missing: int) -> Waiter:
        entries = [
            self._ownership.entry_of(item)
            for item in items
            if isinstance(item, ObjectRef)
        ]
        waiter = self._watch(entries, missing, stop_on_failure=False)
        for item in items:
            if isinstance(item, ObjectRefGenerator):
                item._stream.waiters.append(waiter)
        return waiter

    def _unwatch_any(self, waiter: Waiter, items: Sequence[Any]) -> None:
        with self._shared.lock:
            entries = []
            for item in items:
                if not isinstance(item, ObjectRefGenerator):
                    entries.append(self._ownership.entry_of(item))
                elif waiter in item._stream.waiters:
                    item._stream.waiters.remove(waiter)
        self._unwatch(waiter, entries)

    def _story(self, items: Sequence[Any]) -> str:
        refs = [item for item in items if isinstance(item, ObjectRef)]
        if not refs:
            return counted(len(items), "generator")
        with self._shared.lock:
            entries = self._ownership.entries_of(refs)
        return self._waits.story_of(entries)()

    # --- waiting threads ---

    def _watch(
        self, entries: Sequence[Entry], count: int, *, stop_on_failure: bool
    ) -> Waiter:
        """Prepare to wait for pending entries; the lock is held."""
        waiter = Waiter(count, stop_on_failure=stop_on_failure)
        for entry in entries:
            if entry.waiters is None:
                entry.waiters = [waiter]
            else:
                entry.waiters.append(waiter)
            if entry.owner is not None:
                self._ownership.ask_owner(entry)
        return waiter

    def _unwatch(self, waiter: Waiter, entries: Sequence[Entry]) -> None:
        with self._shared.lock:
            for entry in entries:
                if entry.waiters and waiter in entry.waiters:
                    entry.waiters.remove(waiter)

    # --- futures ---

    def future_of(self, ref: ObjectRef) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        resolver = self._resolver
        resolver.begin()

        def resolve() -> None:
            resolver.submit(lambda: self._resolve(ref, future))

        with self._shared.lock:
            entry = self._ownership.entry_of(ref)
            if entry.state == PENDING:
                entry.waiters = [*(entry.waiters or ()), FutureWaiter(resolve)]
                self._ownership.ask_owner(entry)
                return future
        resolve()
        return future

    def _resolve(self, ref: ObjectRef, future: concurrent.futures.Future[Any]) -> None:
        try:
            value = self.get([ref], None)[0]
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def close(self) -> None:
        self._resolver.close()
