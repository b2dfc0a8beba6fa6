"""What goes into the serializer comes out of it, or there is a good reason."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.exceptions import SparkrayError
from sparkray.store.serialize import RAW_MIN_BYTES, deserialize, serialize


def through_bytes(value: Any) -> Any:
    return deserialize(serialize(value).to_bytes())


def through_memory(value: Any) -> Any:
    """As through a segment: written into a larger buffer, read from a view of it."""
    serialized = serialize(value)
    memory = memoryview(bytearray(b"\xff" * (serialized.size_bytes + 100)))
    serialized.write_into(memory)
    assert bytes(memory[-100:]) == b"\xff" * 100
    return deserialize(memory[: serialized.size_bytes])


ROADS = pytest.mark.parametrize("road", [through_bytes, through_memory])

GRID = np.arange(24).reshape(2, 3, 4)
ARRAYS = {
    "c order": GRID,
    "transposed": GRID.T,
    "fortran": np.asfortranarray(GRID),
    "not contiguous": GRID[:, ::2, 1],
    "reversed": GRID[::-1],
    "broadcast": np.broadcast_to(np.int64(3), (5, 2)),
    "empty": np.zeros((0, 3)),
    "empty dates": np.zeros(0, "M8[s]"),
    "no dimension": np.array(5),
    "half": GRID.astype("f2"),
    "complex": GRID.astype("c16"),
    "bool": GRID > 3,
    "big endian": GRID.astype(">i4"),
    "text": np.array(["x", "yy"]),
    "bytes": np.array([b"x"]),
    "dates": np.array(["2020-01-01"], dtype="M8[D]"),
    "durations": np.array([1, 2], dtype="m8[ns]")[::-1],
    "records": np.array([(1, 2.0)], dtype=[("i", "i4"), ("f", "f8")]),
    "large": np.arange(300_000),
}


@ROADS
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_type_and_layout_come_back_read_only(
    road: Any, name: str
) -> None:
    array = ARRAYS[name]
    for back in (road(array), road({"nested": [array]})["nested"][0]):
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)
        assert not back.flags.writeable
        if back.size:
            with pytest.raises(ValueError, match="WRITEABLE"):
                back.flags.writeable = True


def test_arrays_of_objects_round_trip() -> None:
    array = np.array([1, "two", None, [3]], dtype=object)
    assert through_bytes(array).tolist() == array.tolist()


def test_an_array_is_a_view_of_the_payload_at_an_aligned_place() -> None:
    data = serialize([np.arange(5), np.arange(7.0)]).to_bytes()
    start = np.frombuffer(data, np.uint8).ctypes.data
    for array in deserialize(data):
        assert (array.ctypes.data - start) % 64 == 0
        assert 0 < array.ctypes.data - start < len(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_are_plain_pickles(value: Any) -> None:
    data = serialize(value).to_bytes()
    if b"__main__" not in data:
        assert data == pickle.dumps(value, protocol=5)
    assert deserialize(data) == value


@ROADS
@pytest.mark.parametrize("size", [0, 1, RAW_MIN_BYTES - 1, RAW_MIN_BYTES, 10**6])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_of_any_size_round_trip(road: Any, size: int, kind: type) -> None:
    value = kind(b"ab" * size)[:size]
    back = road(value)
    assert back == value and type(back) is kind


def test_large_bytes_are_not_copied_before_they_are_written() -> None:
    value = bytes(RAW_MIN_BYTES)
    assert any(piece is value for _, piece in serialize(value).pieces())


@ROADS
def test_data_frames_of_all_kinds_of_columns_round_trip(road: Any) -> None:
    frame = pd.DataFrame(
        {
            "int": range(5),
            "text": list("abcde"),
            "date": pd.date_range("2020", periods=5),
            "zoned": pd.date_range("2020", periods=5, tz="UTC"),
            "category": pd.Categorical(list("ababa")),
            "nullable": pd.array([1, 2, None, 4, 5]),
            "object": [1, "a", None, [], {}],
        }
    )
    pd.testing.assert_frame_equal(road(frame), frame)
    pd.testing.assert_frame_equal(road(frame.iloc[::2]), frame.iloc[::2])
    pd.testing.assert_series_equal(road(frame["date"]), frame["date"])


@ROADS
@pytest.mark.parametrize(
    "value",
    [
        pa.table({"x": [1, None, 3], "s": ["a", "b", None]}),
        pa.table({"x": pa.array([], pa.int8())}),
        pa.table({"x": pa.chunked_array([[1], [2, 3]])}),
        pa.table({"x": list(range(1000))}).slice(10, 3),
        pa.record_batch({"x": [1, 2], "d": pa.array(["a", "a"]).dictionary_encode()}),
    ],
)
def test_arrow_data_comes_back_as_arrow(road: Any, value: Any) -> None:
    back = road(value)
    assert type(back) is type(value) and back.equals(value)
    assert road([value])[0].equals(value)


def test_an_arrow_table_comes_back_without_a_copy() -> None:
    data = serialize(pa.table({"x": np.arange(100_000)})).to_bytes()
    start = np.frombuffer(data, np.uint8).ctypes.data
    buffer = deserialize(data).column("x").chunk(0).buffers()[1]
    assert start < buffer.address < start + len(data)


def test_a_slice_of_arrow_data_does_not_carry_all_of_its_parent() -> None:
    column = pa.array(range(100_000)).slice(7, 3)
    table = pa.table({"x": column})
    parts = [column, pa.chunked_array([column]), table, table.to_batches()[0]]
    serialized = serialize(parts)
    assert serialized.size_bytes < 10_000
    for back, part in zip(deserialize(serialized.to_bytes()), parts, strict=True):
        assert back.equals(part)


def test_each_deserialize_gives_objects_of_its_own() -> None:
    data = serialize([1, [2]]).to_bytes()
    deserialize(data)[1].append(3)
    assert deserialize(data) == [1, [2]]


def test_functions_and_classes_of_local_scopes_go_by_value() -> None:
    step = 2

    class Local:
        def __init__(self, start: int) -> None:
            self.start = start

        def next(self) -> int:
            return self.start + step

    assert through_bytes(Local(3)).next() == 5
    assert through_bytes(lambda x: x + step)(1) == 3
    large = through_bytes([Local(1), np.arange(10)])
    assert large[0].next() == 3 and not large[1].flags.writeable


def test_what_main_defines_goes_by_value() -> None:
    program = """
import sys
from sparkray.store.serialize import serialize
class Point:
    x = 41
    def plus(self): return self.x + 1
sys.stdout.buffer.write(serialize((Point(), lambda p: p.plus())).to_bytes())
"""
    data = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    )
    point, function = deserialize(data.stdout)
    assert function(point) == 42 and type(point).__name__ == "Point"


def test_serializing_plain_values_loads_neither_numpy_nor_arrow_nor_cloudpickle() -> (
    None
):
    program = """
import sys
from sparkray.store.serialize import serialize, deserialize
assert deserialize(serialize({"a": [1]}).to_bytes()) == {"a": [1]}
print([m for m in ("numpy", "pyarrow", "pandas", "torch", "cloudpickle")
       if m in sys.modules])
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    )
    assert out.stdout.strip() == b"[]"


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


def test_the_error_names_the_way_to_what_cannot_be_pickled() -> None:
    holder = Holder(Holder({"lock": threading.Lock()}))

    def task() -> Any:
        return holder

    with pytest.raises(TypeError) as caught:
        serialize(task, "task")
    assert str(caught.value) == (
        "cannot serialize task: task -> closure variable 'holder' -> attribute 'inner'"
        " -> attribute 'inner' -> value of key 'lock':"
        " cannot pickle '_thread.lock' object"
    )
    assert isinstance(caught.value.__cause__, TypeError)


class Slotted:
    __slots__ = ("thing",)

    def __init__(self) -> None:
        self.thing = threading.Lock()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, {"k": threading.Lock()}], "item 1 -> value of key 'k'"),
        (Slotted(), "attribute 'thing'"),
        (({threading.Lock()},), "item 0 -> element"),
    ],
)
def test_the_error_looks_into_containers_and_slots(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=r"cannot serialize a \w+: ") as caught:
        serialize(value)
    assert words in str(caught.value)


def test_the_error_looks_into_globals_and_defaults() -> None:
    scope: dict[str, Any] = {"lock": threading.Lock(), "__name__": "__main__"}
    exec("def uses_global(): return lock", scope)
    exec("def has_default(a, b=lock): return b", scope)
    with pytest.raises(TypeError, match="global variable 'lock'"):
        serialize(scope["uses_global"])
    with pytest.raises(TypeError, match="default of argument 'b'"):
        serialize(scope["has_default"])


def test_an_object_that_contains_itself_does_not_stop_the_search() -> None:
    loop: list[Any] = [threading.Lock()]
    loop.insert(0, loop)
    with pytest.raises(TypeError, match="item 1: cannot pickle"):
        serialize(loop)


class Refuses:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


def test_errors_of_user_code_are_chained_and_ours_pass_through() -> None:
    with pytest.raises(TypeError, match="ValueError: not me") as caught:
        serialize([Refuses(ValueError("not me"))])
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(SparkrayError, match="ours"):
        serialize([Refuses(SparkrayError("ours"))])


def test_too_deep_a_value_is_a_type_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(TypeError, match="cannot serialize"):
        serialize(value)


def test_modules_that_the_user_registered_go_by_value() -> None:
    import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        data = serialize(Holder(datetime.date(2020, 1, 1))).to_bytes()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert b"make_skeleton_class" in data
    assert deserialize(data).inner == datetime.date(2020, 1, 1)


def test_torch_tensors_come_back_equal() -> None:
    torch = pytest.importorskip("torch")
    grid = torch.arange(6.0).reshape(2, 3)
    samples = [grid, grid.T, grid.bfloat16(), torch.tensor(1), torch.zeros(0, 2)]
    for back, sample in zip(through_memory(samples), samples, strict=True):
        assert back.dtype == sample.dtype and torch.equal(back, sample)
