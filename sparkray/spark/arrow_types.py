"""Arrow types on their way to Spark and back.  No I/O; Arrow is loaded on first use.

Spark's own mapping decides what a type becomes (`pyspark.sql.pandas.types`).  Here are
the steps before and after it: which Arrow type stands for one that Spark does not read,
and how data is brought to a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparkray.words import counted

if TYPE_CHECKING:
    import pyarrow as pa


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that stands for ``schema`` in Spark.

    Raises:
        TypeError: Spark has no type for a column; names it.
    """
    import pyarrow as pa

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, readable(field.type), field.nullable))
        except TypeError as error:
            raise TypeError(f"column {field.name!r}: {error}") from None
    return pa.schema(fields)


def readable(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type, among those that Spark reads, that holds every value.

    Unsigned integers become wider signed ones (``uint64`` a decimal of 20 digits), half
    floats floats; times are in microseconds (what is finer is cut off); dictionaries,
    views, large, fixed-size, run-end encoded and extension types become the plain type
    of their values.

    Raises:
        TypeError: there is none.
    """
    return _rebuilt(kind, _readable_leaf)


def with_large_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with 64-bit offsets for text and binary values."""
    import pyarrow as pa

    larger = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return pa.schema(
        field.with_type(_rebuilt(field.type, lambda kind: larger.get(kind, kind)))
        for field in schema
    )


def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema of data of which any value may be missing."""
    import pyarrow as pa

    return pa.schema([(field.name, _nullable(field.type)) for field in schema])


def brought_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the names and types of ``schema``, column by column.

    Raises:
        TypeError: a value does not fit, or is missing where none may; says where.
    """
    import pyarrow as pa

    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        try:
            columns.append(cast(column, field.type))
        except pa.ArrowException as error:
            raise TypeError(
                f"column {field.name!r} is {column.type} and cannot be brought to"
                f" {field.type}: {error}"
            ) from None
        if not field.nullable and column.null_count:
            raise TypeError(
                f"column {field.name!r} has {counted(column.null_count, 'null')}, and"
                " the schema allows none"
            )
    return pa.table(columns, schema=schema)


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the column as another type; only times may lose what is too fine."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        return cast(pa.chunked_array(chunks, column.type.storage_type), kind)
    if pa.types.is_run_end_encoded(column.type):
        chunks = [pc.run_end_decode(chunk) for chunk in column.chunks]
        return cast(pa.chunked_array(chunks, column.type.value_type), kind)
    options = pc.CastOptions(kind, allow_time_truncate=True)
    try:
        done = pc.cast(column, options=options)
        done.validate()
    except pa.ArrowException:
        if not pa.types.is_nested(kind):
            raise
        # Arrow's cast fails on some nested types: null children, empty dictionaries
        chunks = [pa.array(chunk.to_pylist(), kind) for chunk in column.chunks]
        return pa.chunked_array(chunks, kind)
    return done


def conformed(table: pa.Table, schema: pa.Schema, *, explicit: bool) -> pa.Table:
    """Return data that came without a promise as what a frame's schema says.

    Columns are found by name.

    Args:
        explicit: the user gave the schema, so whatever fits without loss is cast; else
            only what is the same for Spark.

    Raises:
        TypeError: the data are others; says how.
    """
    chosen = _in_order(table, schema)
    if chosen is None:
        raise TypeError(f"its columns are {table.schema.names}, not {schema.names}")
    if not explicit:
        for given, wanted in zip(chosen.schema, schema, strict=True):
            if not _is_same(given.type, wanted.type):
                raise TypeError(
                    f"its column {given.name!r} is {given.type}, that of the first one"
                    f" {wanted.type}; pass schema= to have it cast"
                )
    return brought_to(chosen, schema)


def _in_order(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    if table.schema.names == schema.names:
        return table
    names = set(schema.names)
    if len(names) < len(schema.names) or sorted(table.schema.names) != sorted(names):
        return None
    return table.select(schema.names)


def _is_same(given: pa.DataType, wanted: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_null(given):  # its one value is in every type
        return True
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(_wider(given, wanted) == wanted)
    return bool(_nullable(readable(given)) == _nullable(wanted))


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that data of all of these fit into without loss.

    A column of nulls fits any type; one of decimals has digits enough for all, as
    pandas gives each batch only those that its own values have.

    Raises:
        pyarrow.ArrowException: they differ otherwise; says in what.
    """
    import pyarrow as pa

    widest: dict[str, pa.DataType] = {}
    for field in (field for schema in schemas for field in schema):
        if pa.types.is_decimal(field.type):
            known = widest.get(field.name, field.type)
            widest[field.name] = _wider(field.type, known) or known

    def widened(field: pa.Field) -> pa.Field:
        if not pa.types.is_decimal(field.type):
            return field
        wide = widest[field.name]
        return field.with_type(wide) if _wider(field.type, wide) == wide else field

    return pa.unify_schemas([pa.schema(map(widened, schema)) for schema in schemas])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the decimal that the values of both fit into, None if Spark has none."""
    import pyarrow as pa

    scale = max(one.scale, other.scale)
    precision = max(one.precision - one.scale, other.precision - other.scale) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else None


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type without what only says whether a value may be missing, and in
    which zone a point of time is shown."""
    import pyarrow as pa

    def plain(leaf: pa.DataType) -> pa.DataType:
        zoned = pa.types.is_timestamp(leaf) and leaf.tz is not None
        return pa.timestamp(leaf.unit, "UTC") if zoned else leaf

    return _rebuilt(kind, plain, nullable=True)


def _readable_leaf(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if kind in _kept():
        return kind
    known = _replaced().get(kind)
    if known is not None:
        return known
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    raise TypeError(f"Spark has no type for Arrow's {kind}")


def _kept() -> set[pa.DataType]:
    import pyarrow as pa

    return {
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32()),
        *(pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.null()),
    }


def _replaced() -> dict[pa.DataType, pa.DataType]:
    import pyarrow as pa

    pairs = [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.date64(), pa.date32()),
    ]
    if hasattr(pa, "string_view"):  # Arrow 16
        pairs += [(pa.string_view(), pa.string()), (pa.binary_view(), pa.binary())]
    return dict(pairs)


def _rebuilt(
    kind: pa.DataType,
    leaf: Callable[[pa.DataType], pa.DataType],
    *,
    nullable: bool = False,
) -> pa.DataType:
    """Return a type of lists, maps and structs with other types at its ends."""
    import pyarrow as pa

    def field(one: pa.Field, name: str) -> pa.Field:
        inner = _rebuilt(one.type, leaf, nullable=nullable)
        return pa.field(name, inner, one.nullable or nullable, one.metadata)

    types: Any = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _rebuilt(kind.storage_type, leaf, nullable=nullable)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _rebuilt(kind.value_type, leaf, nullable=nullable)
    if types.is_map(kind):
        value = field(kind.item_field, "value")
        return pa.map_(_rebuilt(kind.key_type, leaf, nullable=nullable), value)
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field(one, one.name) for one in fields])
    if hasattr(kind, "value_field") and types.is_nested(kind):  # all kinds of lists
        return pa.list_(field(kind.value_field, "element"))
    return leaf(kind)
