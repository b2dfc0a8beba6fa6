"""The object store of one node: carries out what `state.accounting` decides.

Used by the agent on its loop, and by nothing else: only the copying of files happens in
threads.  Knows objects by id; who refers to them is the business of their owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sparkray import ids
from sparkray.config import Settings
from sparkray.exceptions import ObjectLostError, ObjectStoreFullError
from sparkray.store import flight, segment
from sparkray.store.files import StoreFiles
from sparkray.store.spill import SpillDamagedError
from sparkray.store.state.accounting import Accounting
from sparkray.store.state.actions import (
    Action,
    DeleteFile,
    Grant,
    Pinned,
    Refused,
    Remove,
    Restore,
    Spill,
    Verify,
)

_log = logging.getLogger(__name__)

#: Brings an object here: creates, writes and seals it, or raises.
Fetch = Callable[[bytes], Awaitable[None]]

#: After a failed spill the disk is left alone for this time.
_SPILL_PAUSE_S: Final = 5.0
#: Freed memory stays ready for the next object for this time, or twice as long.
_WARM_S: Final = 10.0
#: The store's own name among its clients, for copies from other nodes.
_SELF: Final = "(store)"


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a store is."""

    used_bytes: int  #: memory of objects; freed memory kept warm does not count
    limit_bytes: int
    warm_bytes: int
    waiting: int  #: requests that wait for room
    text: str  #: what takes the room, for people


class NodeStore:
    """See the module.  Clients are named by any hashable, e.g. a worker id.

    Args:
        directory: for segments; made if need be, removed by `close`.
        limit_bytes: memory of the store.
        spill_dir: parent of the directory for what does not fit into memory.
        settings: for the high-water mark and how long a create waits.
    """

    def __init__(
        self, directory: str, limit_bytes: int, spill_dir: str, settings: Settings
    ) -> None:
        name = os.path.basename(directory.rstrip("/"))
        self._files = StoreFiles(directory, os.path.join(spill_dir, f"{name}-spill"))
        self._timeout_s = settings.store_full_timeout_s
        self._table = Accounting(limit_bytes, settings.store_high_water)
        self._answers: dict[int, tuple[bytes, asyncio.Future[tuple[str, int]]]] = {}
        self._making: set[int] = set()  #: tickets whose file is being made
        self._fetching: dict[bytes, asyncio.Task[None]] = {}
        self._fetch_errors: dict[bytes, Exception] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._spill_error = ""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    # --- writing ---

    async def create(
        self,
        client: Hashable,
        object_id: bytes,
        size_bytes: int,
        timeout_s: float | None = None,
        *,
        primary: bool = True,
    ) -> tuple[str, int]:
        """Return path and capacity of a segment to write an object into.

        Waits for room as long as it takes, up to ``timeout_s`` (default: the setting
        ``store_full_timeout_s``).  Repeatable: a second call gets the same segment.

        Args:
            primary: False for a copy of what another node has; may be dropped unasked.

        Raises:
            ObjectStoreFullError: larger than the store, or no room in time; says why.
            ObjectLostError: the object was freed meanwhile.
        """
        ticket, actions = self._table.create(
            client, object_id, size_bytes, primary=primary
        )
        future = self._expect(ticket, object_id)
        self._do(actions)
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        if not await self._done(ticket, future, wait_s):
            raise self._full(size_bytes)
        return future.result()

    def seal(self, object_id: bytes, owner: bytes, client: Hashable = None) -> None:
        """The object is written and may be read.  Repeatable.

        Args:
            owner: worker id of the object's owner.
            client: who wrote it; may be left out if only one does.
        """
        client = self._table.writer_of(object_id) if client is None else client
        self._do(self._table.seal(client, object_id, owner))

    def abort(self, object_id: bytes, client: Hashable = None) -> None:
        """Writing failed, and the writer is done with the segment.  Repeatable."""
        client = self._table.writer_of(object_id) if client is None else client
        self._do(self._table.abort(client, object_id))

    # --- reading ---

    async def pin(
        self,
        client: Hashable,
        object_id: bytes,
        fetch: Fetch | None = None,
        timeout_s: float | None = None,
    ) -> tuple[str, int]:
        """Return path and size of an object, which stays there until `unpin`.

        Brings it back from disk if it is there, waits for it if somebody writes it, and
        else calls ``fetch`` (once for all who wait).

        Args:
            timeout_s: how long it may wait for the object.  None: for room as long as
                a create, and for who writes it as long as that takes.

        Raises:
            ObjectLostError: it is not here and cannot be fetched.
            ObjectStoreFullError: no room for it.
            Exception: what ``fetch`` raised.
        """
        if fetch is not None and self._table.state_of(object_id) is None:
            self._start_fetch(object_id, fetch)
        try:
            ticket, actions = self._table.pin(client, object_id)
        except KeyError:
            raise ObjectLostError(object_id.hex(), "this node has no copy") from None
        future = self._expect(ticket, object_id)
        self._do(actions)
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        patient = timeout_s is None
        while not await self._done(ticket, future, wait_s, keep=patient):
            patient = patient and not self._table.waits_for_room(object_id)
            if not patient:
                self._give_up(ticket, future)
                raise self._full(self._table.size_of(object_id) or 0)
        return future.result()

    def unpin(self, client: Hashable, object_ids: Iterable[bytes]) -> None:
        """Take back one pin on each."""
        self._do(self._table.unpin(client, object_ids))

    def contains(self, object_id: bytes) -> bool:
        """Whether this node has the object, in memory or on disk."""
        return self._table.size_of(object_id) is not None

    def size_of(self, object_id: bytes) -> int | None:
        """Return the object's size in bytes, None if it is not here."""
        return self._table.size_of(object_id)

    async def pull(
        self, object_id: bytes, address: str, token: bytes, timeout_s: float = 600.0
    ) -> None:
        """Copy an object from the Flight server of another node: see `pin`'s ``fetch``.

        Raises:
            ObjectLostError: that node does not have it, or cannot be reached.
            ObjectStoreFullError: no room for it here.
        """
        loop = asyncio.get_running_loop()

        def make_room(size_bytes: int) -> memoryview:
            making = self.create(_SELF, object_id, size_bytes, primary=False)
            path, _ = asyncio.run_coroutine_threadsafe(making, loop).result()
            return segment.map_for_writing(path, size_bytes)

        try:
            await _in_daemon_thread(
                lambda: flight.fetch(address, token, object_id, make_room, timeout_s)
            )
        except BaseException:
            self.abort(object_id, _SELF)
            raise
        self.seal(object_id, ids.owner_of(ids.ObjectID(object_id)), _SELF)

    # --- freeing ---

    def free(self, object_ids: Iterable[bytes]) -> None:
        """Nobody needs these any more.  Readers keep what they have mapped."""
        self._do(self._table.free(object_ids))

    def pass_on(self, object_ids: Iterable[bytes], owner: bytes) -> None:
        """These end with another owner than they had."""
        self._table.pass_on(object_ids, owner)

    def free_owner(self, owner: bytes) -> None:
        """Free all objects of one owner, e.g. when it is gone."""
        self.free(self._table.objects_of(owner))
        self._table.forget_inboxes(owner)

    def close_inbox(self, prefix: bytes, keep: Iterable[bytes]) -> None:
        """Free what was made under a prefix, all but ``keep``; take no more of it."""
        self._do(self._table.close_inbox(prefix, set(keep)))

    def forget_client(self, client: Hashable) -> None:
        """A process is gone: drop its pins, abort what it was writing."""
        self._do(self._table.forget_client(client))

    @property
    def has_originals(self) -> bool:
        """Whether any object here is no copy of what another node has."""
        return self._table.has_originals

    def usage(self) -> Usage:
        table = self._table
        text = table.describe() + self._spill_error
        return Usage(
            table.used_bytes, table.limit_bytes, table.warm_bytes, table.waiting, text
        )

    async def close(self) -> None:
        """Stop, and remove every file.  Idempotent."""
        if self._closed:
            return
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for object_id, future in self._answers.values():
            if not future.done():
                reason = "its node shuts down"
                future.set_exception(ObjectLostError(object_id.hex(), reason))
        await self._files.close()

    # --- answers ---

    def _expect(self, ticket: int, object_id: bytes) -> asyncio.Future[tuple[str, int]]:
        """Return the future of a ticket, the same for a repeated request."""
        known = self._answers.get(ticket)
        if known is not None:
            return known[1]
        future: asyncio.Future[tuple[str, int]]
        future = asyncio.get_running_loop().create_future()
        self._answers[ticket] = (object_id, future)
        future.add_done_callback(lambda _: self._answers.pop(ticket, None))
        return future

    async def _done(
        self,
        ticket: int,
        future: asyncio.Future[Any],
        timeout_s: float,
        *,
        keep: bool = False,
    ) -> bool:
        """Wait for an answer; False if there was none in time.

        Then, unless ``keep``, and whenever the caller is cancelled, none will come.
        """
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if ticket in self._making:  # it has its room, only not yet its file
                await asyncio.wait([future])
        except asyncio.CancelledError:
            self._give_up(ticket, future)
            raise
        if not future.done() and not keep:
            self._give_up(ticket, future)
        return future.done() and not future.cancelled()

    def _give_up(self, ticket: int, future: asyncio.Future[Any]) -> None:
        future.cancel()
        self._do(self._table.give_up(ticket))

    def _answer(self, ticket: int, path: str, size_bytes: int) -> None:
        _, future = self._answers.get(ticket, (b"", None))
        if future is not None and not future.done():
            future.set_result((path, size_bytes))

    def _refuse(self, ticket: int, error: Exception | str) -> None:
        object_id, future = self._answers.get(ticket, (b"", None))
        if future is None or future.done():
            return
        if isinstance(error, str):
            known = self._fetch_errors.get(object_id)
            error = known or ObjectLostError(object_id.hex(), error)
        future.set_exception(error)
        future.exception()  # if nobody waits any more, nobody needs to be told

    def _full(self, size_bytes: int) -> ObjectStoreFullError:
        limit = self._table.limit_bytes
        return ObjectStoreFullError(size_bytes, limit, self.usage().text)

    # --- fetching ---

    def _start_fetch(self, object_id: bytes, fetch: Fetch) -> None:
        if object_id not in self._fetching:
            self._table.expect(object_id)
            task = asyncio.create_task(self._fetch(object_id, fetch))
            self._fetching[object_id] = task

    async def _fetch(self, object_id: bytes, fetch: Fetch) -> None:
        try:
            await fetch(object_id)
        except Exception as error:  # raised again by each pin that waits
            self._fetch_errors[object_id] = error
        finally:
            del self._fetching[object_id]
            self._do(self._table.expect_no_more(object_id))
            self._fetch_errors.pop(object_id, None)

    # --- carrying out ---

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._carry_out(action)
        if self._table.warm_bytes:
            self._after(_WARM_S, "warm", self._table.remove_idle_segments)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Grant() if action.ticket in self._making:
                pass  # a repeated create: the first one's answer serves both
            case Grant(ticket, number, capacity, fresh):
                if fresh:
                    self._making.add(ticket)
                    self._begin(self._make_file(ticket, number, capacity))
                else:
                    self._answer(ticket, self._files.path(number), capacity)
            case Pinned(ticket, _, size, file) if file:
                self._answer(ticket, self._files.spilled_path(file), size)
            case Pinned(ticket, number, size):
                self._answer(ticket, self._files.path(number), size)
            case Refused(ticket, reason):
                self._refuse(ticket, reason)
            case Remove(number, capacity, unmapped):
                self._files.remove(number, capacity, unmapped=unmapped)
            case Spill():
                self._begin(self._spill(action))
            case Restore():
                self._begin(self._restore(action))
            case Verify():
                self._begin(self._verify(action))
            case DeleteFile(file):
                self._files.delete_spilled(file)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _after(
        self, delay_s: float, name: str, act: Callable[[], list[Action]]
    ) -> None:
        """Call ``act`` later, once for all who ask by this name meanwhile."""

        def due() -> None:
            del self._timers[name]
            self._do(act())
            if name == "warm" and self._table.warm_bytes:
                self._after(delay_s, name, act)

        if name not in self._timers and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay_s, due)

    async def _make_file(self, ticket: int, number: int, capacity_bytes: int) -> None:
        try:
            await self._files.make(number, capacity_bytes)
        except OSError as error:
            limit = self._table.limit_bytes
            self._refuse(
                ticket, ObjectStoreFullError(capacity_bytes, limit, str(error))
            )
            self._do(self._table.segment_failed(ticket))
        else:
            self._answer(ticket, self._files.path(number), capacity_bytes)
        finally:
            self._making.discard(ticket)

    async def _spill(self, job: Spill) -> None:
        try:
            await self._files.spill(job.segment, job.size_bytes, job.file)
        except OSError as error:
            if not self._spill_error:
                _log.warning("cannot spill objects to disk: %s", error)
            self._spill_error = f"; spilling to disk failed: {error}"
            self._do(self._table.spill_failed(job.file))
            self._after(_SPILL_PAUSE_S, "spill", self._table.allow_spilling)
        else:
            self._spill_error = ""
            self._do(self._table.spilled(job.file))

    async def _restore(self, job: Restore) -> None:
        try:
            if job.fresh:
                await self._files.make(job.segment, job.capacity_bytes)
        except OSError as error:
            _log.warning("cannot restore an object from disk: %s", error)
            self._do(self._table.restore_failed(job.ticket, lost=False))
            return
        reading = self._files.restore(job.file, job.segment, job.size_bytes)
        await self._read_back(job.ticket, reading)

    async def _verify(self, job: Verify) -> None:
        checking = self._files.verify(job.file, job.size_bytes)
        await self._read_back(job.ticket, checking)

    async def _read_back(self, ticket: int, reading: Awaitable[None]) -> None:
        try:
            await reading
        except (OSError, SpillDamagedError) as error:
            _log.warning("a spilled object is lost: %s", error)
            self._do(self._table.restore_failed(ticket, lost=True))
        else:
            self._do(self._table.restored(ticket))


async def _in_daemon_thread(work: Callable[[], object]) -> None:
    """Run ``work`` beside the loop; a peer that hangs does not hold up our exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:  # raised again where it is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=run, name="sparkray-fetch", daemon=True).start()
    await done
