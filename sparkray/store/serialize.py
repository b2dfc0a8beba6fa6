"""Values <-> bytes.  Knows pickle, Arrow and buffers; nothing of segments or messages.

The first byte of a payload says what it is:

    0x80   a plain pickle: ``pickle.loads`` takes it as it is
    0x01   container: a pickle whose buffers (protocol 5) lie behind it

               0     kind, 3 bytes unused
               4     u32  number of buffers
               8     u64  length of the pickle
               16    u64  length of each buffer
               ...   the pickle, then every buffer at a multiple of 64 bytes

    0x02 bytes, 0x03 bytearray, 0x04 Arrow table, 0x05 Arrow record batch

               0     kind, 7 bytes unused
               8     u64  length of the body
               64    the body: the bytes, or an Arrow IPC stream

The C pickler goes first.  What it cannot do, or would do by reference to ``__main__``,
is pickled again by cloudpickle.  `Serialized` refers to the value's own memory until it
is written: the value must not change between `serialize` and `Serialized.write_into`.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sparkray.exceptions import NotPicklableError, SparkrayError
from sparkray.store import code, reducers
from sparkray.store.copying import copy_into
from sparkray.store.explain import explain_unpicklable, own_name

Buffer: TypeAlias = "bytes | bytearray | memoryview"

ALIGNMENT: Final = 64
#: A top-level bytes value of this size or more is never copied into a pickle.
RAW_MIN_BYTES: Final = 64 * 1024

_PLAIN: Final = 0x80
_CONTAINER: Final = 0x01
_BYTES: Final = 0x02
_BYTEARRAY: Final = 0x03
_TABLE: Final = 0x04
_BATCH: Final = 0x05

_HEAD: Final = struct.Struct("<B3xIQ")
_BODY_HEAD: Final = struct.Struct("<B7xQ48x")

_dumps = pickle.dumps
_loads = pickle.loads
_modules = sys.modules


#: Values of exactly these classes hold no refs, no buffers and no code.
ATOMS: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})


def dump_atoms(value: Any) -> bytes:
    """Return the payload of an atom, or of a tuple or dict of atoms and no more.

    The short way for what most calls pass and return: the payload is a plain pickle, as
    `serialize` makes it.
    """
    return _dumps(value, 5)


class Serialized:
    """A value as bytes that are not in one place yet.

    Attributes:
        size_bytes: how much `to_bytes` returns and `write_into` writes.
    """

    __slots__ = ("_pieces", "_plain", "size_bytes")

    def __init__(
        self,
        size_bytes: int,
        plain: bytes,
        pieces: list[tuple[int, Buffer]] | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self._plain = plain
        self._pieces = pieces

    def pieces(self) -> list[tuple[int, Buffer]]:
        """Return each piece with its offset, in order; the gaps between are padding."""
        return [(0, self._plain)] if self._pieces is None else self._pieces

    def to_bytes(self) -> bytes:
        if self._pieces is None:
            return self._plain
        parts: list[Buffer] = []
        end = 0
        for offset, piece in self._pieces:
            if offset > end:
                parts.append(bytes(offset - end))
            parts.append(piece)
            end = offset + len(piece)
        return b"".join(parts)

    def write_into(self, buffer: memoryview) -> None:
        """Write ``size_bytes`` bytes to the beginning of a writable byte view."""
        for offset, piece in self.pieces():
            copy_into(buffer[offset : offset + len(piece)], piece)


def serialize(value: Any, name: str = "") -> Serialized:
    """Return ``value`` as bytes to be written somewhere.

    The ``__reduce__`` of an object inside may run more than once: the C pickler may
    give up after it was called.

    Args:
        value: anything that pickle or cloudpickle can take.
        name: what to call it in an error.

    Raises:
        TypeError: it cannot be pickled; says which part of it and how it is reached.
    """
    if len(_modules) != _modules_known:
        _look_at_modules()
    writer = _WRITERS.get(type(value))
    if writer is not None:
        written = writer(value)
        if written is not None:
            return written
    if _torch_is_loaded and reducers.holds_tensor(value):
        return _serialize_carefully(value, name)
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = _dumps(value, 5, buffer_callback=buffers.append)
    except (SparkrayError, MemoryError):
        raise
    except Exception:  # user code runs in here: __reduce__, __getstate__
        return _serialize_carefully(value, name)
    if (
        b"__main__" in data
        or b"_reconstruct" in data  # a numpy array that lies in the pickle itself
        or (buffers and b"pyarrow" in data)
        or (_torch_is_loaded and b"torch" in data)
        or _by_value_modules
    ):
        return _serialize_carefully(value, name)
    return _container(data, buffers) if buffers else Serialized(len(data), data)


def deserialize(data: Buffer) -> Any:
    """Return the value of a payload that `serialize` made.

    Buffers of the value (arrays, Arrow columns) are read-only views into ``data``,
    which stays alive as long as they do.  Everything else is new with each call.
    """
    kind = data[0]
    if kind == _PLAIN:
        return _loads(data)
    view = memoryview(data).toreadonly()
    if kind == _CONTAINER:
        return _open_container(view)
    (size,) = struct.unpack_from("<Q", view, 8)
    body = view[_BODY_HEAD.size : _BODY_HEAD.size + size]
    if kind == _BYTES:
        return bytes(body)
    if kind == _BYTEARRAY:
        return bytearray(body)
    if kind == _TABLE:
        return reducers.read_table(body)
    if kind == _BATCH:
        return reducers.read_batch(body)
    raise ValueError(f"not a serialized value: first byte is {kind:#04x}")


def _open_container(view: memoryview) -> Any:
    _, count, pickle_size = _HEAD.unpack_from(view)
    sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    start = _HEAD.size + 8 * count
    end = start + pickle_size
    stream = view[start:end]
    buffers = []
    for size in sizes:
        start = _aligned(end)
        end = start + size
        buffers.append(view[start:end])
    return _loads(stream, buffers=buffers)


def _container(data: bytes, buffers: list[pickle.PickleBuffer]) -> Serialized:
    raws = [buffer.raw() for buffer in buffers]
    sizes = [raw.nbytes for raw in raws]
    head = _HEAD.pack(_CONTAINER, len(raws), len(data)) + struct.pack(
        f"<{len(raws)}Q", *sizes
    )
    pieces: list[tuple[int, Buffer]] = [(0, head), (len(head), data)]
    end = len(head) + len(data)
    for raw, size in zip(raws, sizes, strict=True):
        start = _aligned(end)
        pieces.append((start, raw))
        end = start + size
    return Serialized(end, b"", pieces)


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


def _body(kind: int, parts: list[Buffer]) -> Serialized:
    pieces: list[tuple[int, Buffer]] = []
    end = _BODY_HEAD.size
    for part in parts:
        pieces.append((end, part))
        end += len(part)
    head = _BODY_HEAD.pack(kind, end - _BODY_HEAD.size)
    return Serialized(end, b"", [(0, head), *pieces])


# --- the careful way ------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """The C pickler, with buffers for what pickles itself into the stream."""

    def reducer_override(self, value: Any) -> Any:
        return reducers.reduce(value)


def _serialize_carefully(value: Any, name: str) -> Serialized:
    if not _by_value_modules:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        try:
            _Pickler(stream, 5, buffer_callback=buffers.append).dump(value)
        except (SparkrayError, MemoryError):
            raise
        except Exception:  # user code runs in here
            pass
        else:
            data = stream.getvalue()
            if b"__main__" not in data:
                return _finish(data, buffers)
    return _serialize_by_value(value, name)


def _serialize_by_value(value: Any, name: str) -> Serialized:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _cloud_pickler()(stream, 5, buffers.append).dump(value)
    except (SparkrayError, MemoryError):
        raise
    except Exception as error:  # user code runs in here
        name = name or own_name(value)
        chain = explain_unpicklable(value, name)
        raise NotPicklableError(f"cannot serialize {name}: {chain}") from error
    return _finish(stream.getvalue(), buffers)


def _finish(data: bytes, buffers: list[pickle.PickleBuffer]) -> Serialized:
    return _container(data, buffers) if buffers else Serialized(len(data), data)


_cloud_pickler_class: list[Any] = []


def _cloud_pickler() -> Any:
    """Return our subclass of cloudpickle's pickler; loads cloudpickle on first use."""
    if not _cloud_pickler_class:
        import cloudpickle

        class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
            dispatch_table = code.dispatch_table()

            def reducer_override(self, value: Any) -> Any:
                reduced = reducers.reduce(value)
                if reduced is NotImplemented:
                    return super().reducer_override(value)
                return reduced

        _cloud_pickler_class.append(CloudPickler)
    return _cloud_pickler_class[0]


# --- values that are no pickles -------------------------------------------------------


def _write_bytes(value: bytes) -> Serialized | None:
    return _body(_BYTES, [value]) if len(value) >= RAW_MIN_BYTES else None


def _write_bytearray(value: bytearray) -> Serialized | None:
    return _body(_BYTEARRAY, [value]) if len(value) >= RAW_MIN_BYTES else None


def _write_arrow(value: Any) -> Serialized | None:
    return _body(
        _TABLE if type(value).__name__ == "Table" else _BATCH,
        reducers.arrow_parts(value),
    )


#: By exact class.  Arrow's classes join when Arrow is loaded.
_WRITERS: Final[dict[type, Callable[[Any], Serialized | None]]] = {
    bytes: _write_bytes,
    bytearray: _write_bytearray,
}


# --- what is loaded -------------------------------------------------------------------

_modules_known = 0  #: how many modules there were when we looked
_torch_is_loaded = False
#: What the user told cloudpickle to take by value; cloudpickle's own table.
_by_value_modules: Any = ()
_NEEDED: Final = (
    ("cloudpickle.cloudpickle", "_PICKLE_BY_VALUE_MODULES"),
    ("pyarrow.lib", "Table"),
)


def _look_at_modules() -> None:
    """Note which libraries are loaded; looked at again when a module was added."""
    global _modules_known, _torch_is_loaded, _by_value_modules
    count = len(_modules)
    _torch_is_loaded = "torch" in _modules
    for module, name in _NEEDED:
        if module in _modules and not hasattr(_modules[module], name):
            return  # it is being loaded just now: look again next time
    if "cloudpickle.cloudpickle" in _modules:
        cloudpickle: Any = _modules["cloudpickle.cloudpickle"]
        _by_value_modules = cloudpickle._PICKLE_BY_VALUE_MODULES
    if "pyarrow.lib" in _modules:
        arrow: Any = _modules["pyarrow.lib"]
        _WRITERS[arrow.Table] = _WRITERS[arrow.RecordBatch] = _write_arrow
    _modules_known = count
