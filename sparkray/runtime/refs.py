"""`ObjectRef`: the name of a value that exists, or will, somewhere in the cluster.

A ref counts: while one exists the object is kept.  Garbage collection may run
``__del__`` at any moment and in any thread, also while a lock is held, so it only notes
the id; the runtime looks at the notes later.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from sparkray import ids
from sparkray.protocol.messages import Address

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from sparkray.runtime.state.streams import Stream

    #: What an object is, for those who annotate; a plain ``ObjectRef`` may be anything.
    T = TypeVar("T", default=Any, covariant=True)
else:
    from typing import TypeVar

    T = TypeVar("T", covariant=True)


class RefSupport(Protocol):
    """What refs need of the runtime they belong to."""

    @property
    def address(self) -> Address: ...

    def adopt(self, object_id: bytes, owner: Address, *bequest: Any) -> None: ...
    def share_out_of_band(self, ref: ObjectRef) -> None: ...
    def bequest_of(self, ref: ObjectRef) -> Bequest: ...
    def future_of(self, ref: ObjectRef) -> concurrent.futures.Future[Any]: ...
    def next_item(
        self, stream: Stream, timeout_s: float | None
    ) -> ObjectRef | None: ...
    async def next_item_async(self, stream: Stream) -> ObjectRef | None: ...
    def abandon(self, stream: Stream) -> None: ...


def _ignore(object_id: bytes) -> None:
    return


class _Hooks:
    """Where refs report to; set by the one current runtime."""

    #: What unpickles a ref that left by other ways than ours, as in a UDF's closure; it
    #: may have to join a cluster first (set by `api.session`).
    load_out_of_band: Callable[..., ObjectRef] | None = None

    runtime: RefSupport | None = None
    #: Starts a runtime for a process that has none (set by `runtime.core`).
    require: Callable[[], RefSupport] | None = None
    dropped: Callable[[bytes], None] = staticmethod(_ignore)


hooks = _Hooks()
#: What a process that may end soon tells of an object with a ref to it: nothing, or its
#: value (None: it is in stores), its size, and node and Flight address of each store.
Bequest = tuple[()] | tuple[bytes | None, int, list[tuple[bytes, str]]]
ADDRESS_FIELDS: Final = 5
#: So much of small values goes with the refs in one result.
BEQUEST_BYTES: Final = 1 << 20


class _Pickling(threading.local):
    """The refs met by the serialization under way in this thread."""

    met: list[ObjectRef] | None = None
    bequest_bytes = 0  #: so much of small values may still go along


_pickling = _Pickling()


class collecting:
    """Collect the refs that are pickled inside the block (a ref may come twice).

    Args:
        bequeath: what is known of their objects goes along, for this process may end
            before whoever gets them does; of small ones the values, `BEQUEST_BYTES` in
            all.
    """

    __slots__ = ("_before", "_bequest_bytes")

    def __init__(self, *, bequeath: bool = False) -> None:
        self._bequest_bytes = BEQUEST_BYTES if bequeath else 0

    def __enter__(self) -> list[ObjectRef]:
        self._before = _pickling.met, _pickling.bequest_bytes
        met: list[ObjectRef] = []
        _pickling.met, _pickling.bequest_bytes = met, self._bequest_bytes
        return met

    def __exit__(self, *exc_info: object) -> None:
        _pickling.met, _pickling.bequest_bytes = self._before


class ObjectRef(Generic[T]):
    """The name of one object.  Compares and hashes by id; `await` gives the value.

    In annotations, ``ObjectRef[int]`` is the name of an ``int``.
    """

    __slots__ = ("__weakref__", "_id", "_owner")

    def __init__(self, object_id: bytes, owner: Address | None = None) -> None:
        self._id = object_id
        self._owner = owner  #: None: this process

    def binary(self) -> bytes:
        return self._id

    def hex(self) -> str:
        return self._id.hex()

    def is_nil(self) -> bool:
        """Return False: every ref names an object."""
        return False

    def task_id(self) -> bytes:
        """Return the id of the task that makes the object."""
        return ids.task_of(ids.ObjectID(self._id))

    def future(self) -> concurrent.futures.Future[Any]:
        """Return a future of the value."""
        return require_runtime().future_of(self)

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self.future()).__await__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectRef({self._id.hex()})"

    def __copy__(self) -> ObjectRef:
        return self  # a pickled copy that nobody counts would keep the object for ever

    def __deepcopy__(self, memo: object) -> ObjectRef:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        runtime = require_runtime()
        load: Callable[..., ObjectRef] = load_ref
        if _pickling.met is not None:
            _pickling.met.append(self)
            bequest: Bequest = ()
            if _pickling.bequest_bytes > 0 or self._owner is not None:
                bequest = runtime.bequest_of(self)
                _pickling.bequest_bytes -= len(bequest[0] or b"") if bequest else 0
        else:
            runtime.share_out_of_band(self)
            bequest = runtime.bequest_of(self)
            load = hooks.load_out_of_band or load_ref
        owner = self._owner or runtime.address
        return load, (self._id, *fields_of(owner), *bequest)

    def __del__(self, hooks: _Hooks = hooks) -> None:
        hooks.dropped(self._id)


def fields_of(address: Address) -> tuple[Any, ...]:
    return (
        address.worker_id,
        address.node_id,
        address.path,
        address.host,
        address.port,
    )


def load_ref(object_id: bytes, *fields: Any) -> ObjectRef:
    """Unpickle a ref in a member of its cluster.

    Args:
        fields: of its owner's address, then of its `Bequest`.
    """
    runtime = require_runtime()
    address = Address(*fields[:ADDRESS_FIELDS])
    runtime.adopt(object_id, address, *fields[ADDRESS_FIELDS:])
    if address.worker_id == runtime.address.worker_id:
        return ObjectRef(object_id)
    return ObjectRef(object_id, address)


def require_runtime() -> RefSupport:
    """Return this process's runtime, started if this is a fork of a member.

    Raises:
        SparkrayError: the process belongs to no cluster.
    """
    if hooks.runtime is None:
        assert hooks.require is not None
        return hooks.require()
    return hooks.runtime


class ObjectRefGenerator:
    """The refs of a generator task, each as soon as its item exists.

    Iterate, or iterate asynchronously; `wait` takes it too and calls it ready when the
    next item exists.  It lives in the process that started the task and cannot be sent.

    The task of one that is dropped before its end is not held back any more, and goes
    on while somebody has its `completed` ref; else it is closed, as Python closes a
    generator that is dropped (at a ``yield``, with a ``GeneratorExit``), once it has
    made 64 more items.
    """

    def __init__(self, stream: Stream, completed: ObjectRef) -> None:
        self._stream = stream
        self._completed = completed

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        ref = require_runtime().next_item(self._stream, None)
        if ref is None:
            raise StopIteration
        return ref

    def next_ready(self, timeout_s: float | None = None) -> ObjectRef:
        """Return the next ref, waiting ``timeout_s`` at most.

        Raises:
            StopIteration: the generator has ended.
            GetTimeoutError: no item within the time.
        """
        ref = require_runtime().next_item(self._stream, timeout_s)
        if ref is None:
            raise StopIteration
        return ref

    def completed(self) -> ObjectRef:
        """Return a ref that is ready (with None) once the generator has ended."""
        return self._completed

    def task_id(self) -> bytes:
        return self._completed.task_id()

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    async def __anext__(self) -> ObjectRef:
        ref = await require_runtime().next_item_async(self._stream)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "an ObjectRefGenerator stays in the process that called the task;"
            " send the refs it yields instead"
        )

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._completed.hex()})"

    def __del__(self) -> None:
        if hooks.runtime is not None:
            hooks.runtime.abandon(self._stream)


class DynamicObjectRefGenerator:
    """The refs of a task with ``num_returns="dynamic"``: a list that is complete."""

    def __init__(self, refs: list[ObjectRef]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, index: int) -> ObjectRef:
        return self._refs[index]
