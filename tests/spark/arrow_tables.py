"""Arrow tables of all types that Spark can hold in some way, for hypothesis."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

LEAVES = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.large_string()),
    *(pa.binary(), pa.large_binary(), pa.binary(4), pa.date32(), pa.date64()),
    *(pa.decimal128(38, 10), pa.decimal128(5, 0), pa.decimal256(20, 3)),
    *(pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "Asia/Tokyo")),
    *(pa.duration("ms"), pa.null(), pa.dictionary(pa.int16(), pa.string())),
]
_EXACT = decimal.Context(prec=60)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_TIMES = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))


def _kinds_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda kinds: pa.struct([(f"f{n}", kind) for n, kind in enumerate(kinds)])
    )
    keys = st.sampled_from([pa.string(), pa.int32()])
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        structs,
        st.tuples(keys, inner).map(lambda pair: pa.map_(*pair)),
    )


KINDS = st.recursive(st.sampled_from(LEAVES), _kinds_of, max_leaves=5)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, none of them missing on top."""
    types = pa.types
    if types.is_null(kind):
        return st.none()
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_integer(kind):
        least = 0 if types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.integers(least, least + 2**kind.bit_width - 1)
    if types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(
            lambda n: decimal.Decimal(n).scaleb(-kind.scale, _EXACT)
        )
    if types.is_date(kind):
        return st.dates(dt.date(1600, 1, 1))
    if types.is_timestamp(kind):
        whole = _TIMES.map(lambda time: time.replace(microsecond=0))
        return whole if kind.unit == "s" else _TIMES
    if types.is_duration(kind):
        milliseconds = st.integers(-(10**12), 10**12)
        return milliseconds.map(lambda n: dt.timedelta(milliseconds=n))
    return _sized_values(kind)


def _sized_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _TEXT
    if types.is_dictionary(kind):
        return values(kind.value_type)
    if types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return st.binary(max_size=5)
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return st.fixed_dictionaries({f.name: optional(f.type) for f in fields})
    if types.is_map(kind):
        found = st.dictionaries(
            values(kind.key_type), optional(kind.item_type), max_size=2
        )
        return found.map(lambda pairs: list(pairs.items()))
    fixed = types.is_fixed_size_list(kind)
    least, most = (kind.list_size, kind.list_size) if fixed else (0, 3)
    return st.lists(optional(kind.value_type), min_size=least, max_size=most)


def optional(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | values(kind)


@st.composite
def tables(draw: Any) -> pa.Table:
    """A few rows with a column of each plain type, and some of nested ones."""
    kinds = [*LEAVES, *draw(st.lists(KINDS, min_size=8, max_size=8))]
    rows = draw(st.integers(0, 6))
    columns = [
        pa.array(draw(st.lists(optional(kind), min_size=rows, max_size=rows)), kind)
        for kind in kinds
    ]
    return pa.table(columns, names=[f"c{number}" for number in range(len(kinds))])
