"""How arrays and Arrow data inside a value become buffers beside its pickle.

numpy, pyarrow and torch are never imported to serialize: a value of theirs exists only
where they are loaded.
"""

from __future__ import annotations

import mmap
import pickle
import sys
from typing import Any, Final

_modules = sys.modules
#: How far `holds_tensor` looks before it leaves the matter to the pickler.
_LOOK_DEPTH: Final = 3
_LOOK_ITEMS: Final = 64


def reduce(value: Any) -> Any:
    """Return how to pickle ``value`` with buffers, or NotImplemented."""
    module = type(value).__module__
    if module == "numpy":
        return _reduce_numpy(value)
    if module == "pyarrow.lib":
        return _reduce_arrow(value)
    if module == "torch":
        return _reduce_torch(value)
    return NotImplemented


# --- numpy ----------------------------------------------------------------------------


def _reduce_numpy(value: Any) -> Any:
    numpy: Any = _modules["numpy"]
    if type(value) is not numpy.ndarray or value.dtype.hasobject:
        return NotImplemented
    if value.dtype.kind == "T" or value.dtype.metadata:
        return NotImplemented
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    flat = value.ravel(order="F" if fortran else "C")  # a copy unless contiguous
    data = flat.view(numpy.uint8) if flat.nbytes else numpy.empty(0, numpy.uint8)
    order = "F" if fortran else "C"
    return rebuild_array, (pickle.PickleBuffer(data), value.dtype, value.shape, order)


def rebuild_array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    """Return a read-only array over ``buffer``."""
    import numpy

    view = memoryview(buffer).toreadonly()
    if not view.nbytes:
        array = numpy.empty(shape, dtype)
        array.flags.writeable = False
        return array
    return numpy.frombuffer(view, dtype).reshape(
        shape, order="F" if order == "F" else "C"
    )


# --- Arrow ----------------------------------------------------------------------------


class _Parts:
    """A file for Arrow to write to that keeps what it is given, without a copy."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._size = 0

    def write(self, part: Any) -> int:
        kept = part if isinstance(part, bytes) else memoryview(part).cast("B")
        self.parts.append(kept)
        self._size += len(kept)
        return len(kept)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def arrow_parts(value: Any) -> list[Any]:
    """Return the Arrow IPC stream of a table or record batch, piece by piece."""
    import pyarrow

    file = _Parts()
    sink = pyarrow.PythonFile(file, mode="w")
    with pyarrow.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return file.parts


def read_table(body: Any) -> Any:
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(body)) as reader:
        return reader.read_all()


def read_batch(body: Any) -> Any:
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(body)) as reader:
        return reader.read_next_batch()


def _reduce_arrow(value: Any) -> Any:
    """Pickle a slice as what it shows; Arrow itself would send all of its parent."""
    pyarrow: Any = _modules["pyarrow"]
    if not isinstance(
        value,
        (pyarrow.Table, pyarrow.RecordBatch, pyarrow.Array, pyarrow.ChunkedArray),
    ):
        return NotImplemented
    if value.get_total_buffer_size() <= 1.25 * value.nbytes + 4096:
        return NotImplemented
    if isinstance(value, pyarrow.Table):
        return read_table, (_stream(value),)
    if isinstance(value, pyarrow.RecordBatch):
        return read_batch, (_stream(value),)
    if isinstance(value, pyarrow.ChunkedArray):
        return rebuild_column, (_stream(pyarrow.table({"": value})),)
    batch = pyarrow.RecordBatch.from_arrays([value], [""])
    return rebuild_arrow_array, (_stream(batch),)


def _stream(value: Any) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(b"".join(arrow_parts(value)))


def rebuild_column(body: Any) -> Any:
    return read_table(body).column(0)


def rebuild_arrow_array(body: Any) -> Any:
    return read_batch(body).column(0)


# --- torch ----------------------------------------------------------------------------


def holds_tensor(value: Any, depth: int = _LOOK_DEPTH) -> bool:
    """Whether a tensor is near the top of ``value``: to choose the better pickler."""
    kind = type(value)
    if kind.__module__.startswith("torch"):
        return True
    if not depth or not isinstance(value, (tuple, list, dict)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(
        holds_tensor(item, depth - 1)
        for item, _ in zip(items, range(_LOOK_ITEMS), strict=False)
    )


def _reduce_torch(value: Any) -> Any:
    torch: Any = _modules["torch"]
    if type(value) is not torch.Tensor or not _is_plain(torch, value):
        return NotImplemented
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    try:
        data = flat.view(torch.uint8).numpy()
    except (RuntimeError, TypeError):  # no numpy, or a type that has no bytes
        return NotImplemented
    buffer = pickle.PickleBuffer(data)
    return rebuild_tensor, (
        buffer,
        value.dtype,
        tuple(value.shape),
        value.requires_grad,
    )


def _is_plain(torch: Any, tensor: Any) -> bool:
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.__dict__
    )


def rebuild_tensor(
    buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool
) -> Any:
    """Return a tensor over ``buffer`` if that lies in a segment, else over a copy.

    torch knows no read-only tensors.  Segments are mapped privately, so what is written
    to such a tensor stays in this process; bytes of a message would change for all.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]

    view = memoryview(buffer)
    if not view.nbytes:
        tensor = torch.empty(shape, dtype=dtype)
    elif isinstance(view.obj, mmap.mmap):
        tensor = _tensor_over(torch, view, dtype).reshape(shape)
    else:
        tensor = torch.frombuffer(bytearray(view), dtype=dtype).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _tensor_over(torch: Any, view: memoryview, dtype: Any) -> Any:
    import numpy

    whole: Any = view.obj
    offset = (
        numpy.frombuffer(view, numpy.uint8).ctypes.data
        - numpy.frombuffer(whole, numpy.uint8).ctypes.data
    )
    count = view.nbytes // dtype.itemsize
    return torch.frombuffer(whole, dtype=dtype, count=count, offset=offset)
