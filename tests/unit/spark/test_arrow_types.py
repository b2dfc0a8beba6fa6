"""What Arrow's types become on the way to Spark, and that values come along."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from sparkray.spark import arrow_types
from tests.spark.arrow_tables import tables

NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 123456)
LETTERS = pa.dictionary(pa.int8(), pa.string())

#: Type, what stands for it, a value, and what that becomes.
CASES: list[tuple[pa.DataType, pa.DataType, Any, Any]] = [
    *[
        (kind, kind, 7, 7)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())
    ],
    (pa.uint8(), pa.int16(), 255, 255),
    (pa.uint16(), pa.int32(), 65_535, 65_535),
    (pa.uint32(), pa.int64(), 2**32 - 1, 2**32 - 1),
    (pa.uint64(), pa.decimal128(20, 0), 2**64 - 1, Decimal(2**64 - 1)),
    (pa.null(), pa.null(), None, None),
    (pa.large_string(), pa.string(), "ä", "ä"),
    (pa.large_binary(), pa.binary(), b"\0", b"\0"),
    (pa.binary(3), pa.binary(), b"abc", b"abc"),
    (LETTERS, pa.string(), "x", "x"),
    (pa.decimal128(9, 2), pa.decimal128(9, 2), Decimal("1.25"), Decimal("1.25")),
    (pa.decimal256(38, 3), pa.decimal128(38, 3), Decimal("1.125"), Decimal("1.125")),
    (pa.date64(), pa.date32(), NOON.date(), NOON.date()),
    (pa.timestamp("s"), pa.timestamp("us"), NOON.replace(microsecond=0), ...),
    (pa.timestamp("ns"), pa.timestamp("us"), NOON, ...),
    (pa.duration("ms"), pa.duration("us"), dt.timedelta(1), ...),
    (pa.list_(LETTERS), pa.list_(pa.string()), ["a", None], ...),
    (pa.list_(pa.uint8(), 2), pa.list_(pa.int16()), [1, 2], ...),
    (pa.large_list(pa.uint16()), pa.list_(pa.int32()), [1, None], ...),
    (
        pa.map_(pa.large_string(), pa.uint8()),
        pa.map_(pa.string(), pa.int16()),
        [("k", 1)],
        ...,
    ),
    (
        pa.struct([("a", pa.uint8()), ("b", pa.struct([("c", pa.large_string())]))]),
        pa.struct([("a", pa.int16()), ("b", pa.struct([("c", pa.string())]))]),
        {"a": 1, "b": {"c": "x"}},
        ...,
    ),
]


@pytest.mark.parametrize(
    ("kind", "stands", "value", "becomes"), CASES, ids=lambda x: str(x)[:40]
)
def test_a_type_that_spark_lacks_is_stood_for_by_one_that_holds_its_values(
    kind: pa.DataType, stands: pa.DataType, value: Any, becomes: Any
) -> None:
    assert arrow_types.readable(kind).equals(stands) or str(stands) in (
        str(arrow_types.readable(kind)).replace("element", "item"),
    )
    table = pa.table({"x": pa.array([value, None], kind)})
    schema = arrow_types.readable_schema(table.schema)
    back = arrow_types.brought_to(table, schema)
    assert back.schema == schema
    expected = value if becomes is ... else becomes
    assert back["x"].to_pylist() == [expected, None]


def test_run_end_encoded_and_extension_columns_become_their_values() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3], pa.int32()), pa.array(["a", "b"])
    )
    table = pa.table({"x": runs, "y": pa.array([b"\1" * 16] * 3, pa.uuid())})
    schema = arrow_types.readable_schema(table.schema)
    back = arrow_types.brought_to(table, schema)
    assert back["x"].to_pylist() == ["a", "a", "b"]
    assert back["y"].to_pylist() == [b"\1" * 16] * 3


def test_a_type_that_nothing_stands_for_is_named_with_its_column() -> None:
    for kind in (pa.month_day_nano_interval(), pa.decimal256(50, 2)):
        with pytest.raises(TypeError, match="column 'odd': Spark has no type for"):
            arrow_types.readable_schema(pa.schema([("odd", kind)]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.struct([("f", LETTERS)])), [None, None]),
        (pa.large_list(pa.map_(pa.int32(), pa.null())), [[(1, None)], [(2, None)] * 2]),
        (pa.list_(pa.list_(pa.struct([("f", LETTERS)]), 2)), [[None, {"f": None}]]),
    ],
    ids=str,
)
def test_nested_types_that_arrow_does_not_cast_are_brought_over_all_the_same(
    kind: pa.DataType, value: Any
) -> None:
    table = pa.table({"x": pa.array([None, value], kind)})
    schema = arrow_types.readable_schema(table.schema)
    back = arrow_types.conformed(table, schema, explicit=False)
    assert back["x"].to_pylist() == table["x"].to_pylist()


def test_only_times_may_lose_something() -> None:
    column = pa.chunked_array([pa.array([1_001], pa.timestamp("ns"))])
    assert arrow_types.cast(column, pa.timestamp("us"))[0].value == 1
    with pytest.raises(pa.ArrowInvalid):
        arrow_types.cast(pa.chunked_array([[1.5]]), pa.int64())


def test_columns_are_found_by_name_unless_a_name_is_there_twice() -> None:
    table = pa.table({"a": [1], "b": [2]})
    turned = pa.schema([("b", pa.int64()), ("a", pa.int64())])
    found = arrow_types.conformed(table, turned, explicit=False)
    assert found.to_pydict() == {"b": [2], "a": [1]}
    twice = pa.table([[1], [2]], names=["a", "a"])
    assert arrow_types.conformed(twice, twice.schema, explicit=False).equals(twice)
    for other in (pa.schema([("a", pa.int64())]), twice.schema):
        with pytest.raises(TypeError, match="its columns are"):
            arrow_types.conformed(table, other, explicit=True)


@pytest.mark.parametrize(
    ("given", "wanted", "explicit"),
    [
        (pa.null(), pa.list_(pa.int16()), False),
        (pa.list_(pa.field("item", pa.uint8(), False)), pa.list_(pa.int16()), False),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC"), False),
        (pa.int64(), pa.float64(), True),
        (pa.string(), pa.int8(), True),
    ],
)
def test_data_take_the_place_of_others_where_nothing_is_lost(
    given: pa.DataType, wanted: pa.DataType, explicit: bool
) -> None:
    table = pa.table({"x": pa.array([None], given)})
    back = arrow_types.conformed(table, pa.schema([("x", wanted)]), explicit=explicit)
    assert back.schema.field("x").type == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(pa.int64(), pa.float64()), (pa.timestamp("us", "UTC"), pa.timestamp("us"))],
)
def test_other_types_are_refused_where_nobody_asked_for_a_cast(
    given: pa.DataType, wanted: pa.DataType
) -> None:
    table = pa.table({"x": pa.array([1], given)})
    with pytest.raises(TypeError, match=r"column 'x' is .* pass schema="):
        arrow_types.conformed(table, pa.schema([("x", wanted)]), explicit=False)


def test_a_common_schema_has_room_for_the_decimals_of_all() -> None:
    schemas = [
        pa.schema({"a": kind, "b": other})
        for kind, other in [
            (pa.decimal128(6, 1), pa.int64()),
            (pa.null(), pa.int64()),
            (pa.decimal128(5, 3), pa.null()),
        ]
    ]
    common = arrow_types.common_schema(schemas)
    assert common == pa.schema({"a": pa.decimal128(8, 3), "b": pa.int64()})
    table = pa.table({"a": pa.array([Decimal("1.125")], pa.decimal128(5, 3))})
    wanted = pa.schema({"a": common.field("a").type})
    (value,) = arrow_types.conformed(table, wanted, explicit=False)["a"].to_pylist()
    assert value == Decimal("1.125")


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.decimal128(38, 0), pa.decimal128(38, 38)),
        (pa.int64(), pa.string()),
        (pa.decimal128(5, 0), pa.int64()),
    ],
)
def test_types_that_have_no_common_one_are_refused(kinds: tuple[Any, Any]) -> None:
    with pytest.raises(pa.ArrowException):
        arrow_types.common_schema([pa.schema({"a": kind}) for kind in kinds])


def test_a_value_that_does_not_fit_or_is_missing_is_named_with_its_column() -> None:
    table = pa.table({"x": ["one"], "y": pa.array([None], pa.int64())})
    number = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    with pytest.raises(TypeError, match="'x' is string and cannot be brought to int64"):
        arrow_types.conformed(table, number, explicit=True)
    strict = pa.schema([table.schema.field("x"), pa.field("y", pa.int64(), False)])
    with pytest.raises(TypeError, match="'y' has 1 null"):
        arrow_types.conformed(table, strict, explicit=True)
    assert arrow_types.all_nullable(strict).field("y").nullable


def test_large_types_reach_into_nested_ones() -> None:
    schema = pa.schema([("x", pa.struct([("s", pa.list_(pa.string()))]))])
    larger = arrow_types.with_large_types(schema)
    assert "large_string" in str(larger) and larger.names == ["x"]


@settings(max_examples=10)
@given(tables())
def test_values_of_all_types_are_kept_whatever_is_inside_them(table: pa.Table) -> None:
    schema = arrow_types.readable_schema(table.schema)
    assert arrow_types.readable_schema(schema) == schema
    back = arrow_types.conformed(table, schema, explicit=False)
    assert back.schema == schema
    for name in table.column_names:
        for one, other in zip(
            table[name].to_pylist(), back[name].to_pylist(), strict=True
        ):
            assert one == other
