"""DataFrames to objects and back: rows go between Spark and the stores of the hosts.

    from_dataframe     executor's Python worker               driver
                         rows of one partition
                         -> table in the host's store  ──id──>  owns it: a ref
    to_dataframe
                         rows of one partition  <──closure──    loans of refs
                         <- table in the host's store,
                            or from another host's

The driver sees ids, sizes and schemas only.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sparkray
from sparkray.exceptions import ObjectStoreFullError, SparkrayError
from sparkray.spark import arrow_types, discovery
from sparkray.spark.holds import holds
from sparkray.spark.state.dispatch import BlockFacts
from sparkray.util.exchange import Inbox, InboxAddress, Loan, Receipt, nodes_of

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkray import ObjectRef

#: What the driver gets of each partition.
_RECEIPT: Final = (
    "object_id binary, node_id binary, flight string, size_bytes long, rows long,"
    " error binary"
)
#: Rows go to Spark's JVM in batches of about this size: it has each as a whole.
_BATCH_BYTES: Final = 4 * 1024 * 1024
_LARGE_TYPES: Final = "spark.sql.execution.arrow.useLargeVarTypes"


@dataclass(frozen=True)
class Block:
    """One partition of a frame, in a store."""

    ref: ObjectRef
    facts: BlockFacts


def from_dataframe(df: Any) -> list[ObjectRef]:
    """Compute a DataFrame and leave its partitions in the stores of their hosts.

    Returns:
        one ref per partition, in order; each is a `pyarrow.Table`, those of empty
        partitions without rows.  A frame without partitions gives one empty table.
        The data go when the refs go.  They are not computed again: if the host of one
        is lost, `sparkray.get` raises `ObjectLostError`.

    Raises:
        SparkrayError: no session, or this is no driver.
        ObjectStoreFullError: a partition is larger than the store of its host, or no
            room could be made for it.
        TypeError: ``df`` is no DataFrame, or Arrow has no type for a column.
        Exception: what Spark raises when computing it fails.
    """
    return [block.ref for block in blocks_of(df)]


def to_dataframe(
    refs: Sequence[ObjectRef], spark: Any = None, schema: Any = None
) -> Any:
    """Return a DataFrame that reads objects, one partition for each.

    The objects are read when Spark computes the frame, on whichever host it does so,
    and kept for as long as the frame, or one made of it, may be computed; see
    `release`.

    Args:
        refs: of `pyarrow.Table`, `pyarrow.RecordBatch` or `pandas.DataFrame` objects
            (without their index), all with the same columns.
        spark: the SparkSession; default: the active one.
        schema: a Spark schema (`StructType` or text) or a `pyarrow.Schema` that all
            data are cast to, columns by name; default: that of the first object.

    Raises:
        TypeError: something else than refs, or than a table; Spark has no type for a
            column.
        ValueError: no refs and no schema, or no SparkSession.
        TaskError: the task that makes the first object failed.

    An object with other columns or types than the schema makes the Spark job fail; the
    error says which object and which column.
    """
    refs = list(refs)
    for ref in refs:
        if not isinstance(ref, sparkray.ObjectRef):
            raise TypeError(
                f"to_dataframe takes a list of ObjectRefs, not {ref!r:.100} of type"
                f" {type(ref).__name__}"
            )
    check_driver("to_dataframe")
    first = None if schema is not None or not refs else _schema_of(refs[0])
    return frame_of([[ref] for ref in refs], spark, schema, first)


def release(df: Any) -> None:
    """Let go of the objects that a frame of `to_dataframe` or `map_batches` reads.

    Computing it, or one made of it, fails from now on.  For Spark Connect, where the
    end of a frame cannot be seen; elsewhere they go by themselves.

    Raises:
        ValueError: nothing is held for this frame; those made of others have nothing.
    """
    if not holds.release(df):
        raise ValueError(
            "nothing is held for this DataFrame: only what to_dataframe or map_batches"
            " returned can be released, once"
        )


# --- out of Spark ---------------------------------------------------------------------


def blocks_of(df: Any) -> list[Block]:
    """Do what `from_dataframe` does; return more about each partition."""
    for name in ("mapInArrow", "toDF", "sparkSession"):
        if not hasattr(df, name):
            raise TypeError(
                f"expected a Spark DataFrame, not {df!r:.100} of type"
                f" {type(df).__name__}"
            )
    check_driver("from_dataframe")
    holds.sweep()
    schema = _arrow_schema_of(df)
    renamed = df.toDF(*(f"c{number}" for number in range(len(schema))))
    with Inbox() as inbox:
        writer = PartitionWriter(inbox.address, schema)
        rows = renamed.mapInArrow(writer, _RECEIPT).collect()
        blocks = [_take(inbox, row, number) for number, row in enumerate(rows)]
    if blocks:
        return blocks
    node = sparkray.get_runtime_context().get_node_id()
    return [Block(sparkray.put(schema.empty_table()), BlockFacts(node, 0, 0))]


def _take(inbox: Inbox, row: Any, number: int) -> Block:
    if row["error"] is not None:
        error: ObjectStoreFullError = pickle.loads(bytes(row["error"]))
        usage = (
            f"{error.usage}. This is partition {number} of the DataFrame, with"
            f" {row['rows']} rows: df.repartition(n) makes smaller ones"
        )
        raise ObjectStoreFullError(error.needed_bytes, error.limit_bytes, usage)
    receipt = Receipt(
        bytes(row["object_id"]),
        bytes(row["node_id"]),
        row["flight"],
        row["size_bytes"],
    )
    facts = BlockFacts(receipt.node_id.hex(), row["rows"], row["size_bytes"])
    return Block(inbox.take(receipt), facts)


@dataclass(frozen=True)
class PartitionWriter:
    """The function of the Spark job: stores its partition.  Pickled to the executors.

    Attempts of one partition write objects of their own; the driver takes the one whose
    row arrives.
    """

    address: InboxAddress
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = self._table(list(batches))
        sparkray.init()
        number = _attempt_number()
        try:
            receipt = self.address.put(table, number)
        except ObjectStoreFullError as error:
            yield _row({"error": pickle.dumps(error), "rows": table.num_rows})
            return
        try:
            yield _row(
                {
                    "object_id": receipt.object_id,
                    "node_id": receipt.node_id,
                    "flight": receipt.flight,
                    "size_bytes": receipt.size_bytes,
                    "rows": table.num_rows,
                }
            )
        except BaseException:  # Spark wants no row of this attempt
            self.address.discard(number)
            raise

    def _table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        import pyarrow as pa

        if not batches:
            return self.schema.empty_table()
        table = pa.Table.from_batches(batches).rename_columns(self.schema.names)
        return arrow_types.brought_to(table, self.schema)


def _attempt_number() -> int:
    """Return a number that no other attempt of this Spark application has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in Spark's Python workers only"
    return int(context.taskAttemptId()) & 0xFFFFFFFF


def _row(values: dict[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = pa.schema(
        {
            "object_id": pa.binary(),
            "node_id": pa.binary(),
            "flight": pa.string(),
            "size_bytes": pa.int64(),
            "rows": pa.int64(),
            "error": pa.binary(),
        }
    )
    return pa.RecordBatch.from_pylist([values], schema)


def _arrow_schema_of(df: Any) -> pa.Schema:
    schema = _to_arrow(df.schema)
    if not len(schema):
        raise TypeError("a DataFrame without columns has nothing to store")
    large = str(df.sparkSession.conf.get(_LARGE_TYPES, "false")) == "true"
    return arrow_types.with_large_types(schema) if large else schema


# --- into Spark -----------------------------------------------------------------------


def frame_of(
    groups: Sequence[Sequence[ObjectRef]], spark: Any, schema: Any, first: Any
) -> Any:
    """Return a DataFrame with a partition for each group of refs.

    Args:
        spark: None: the active session.
        schema: what the user gave.
        first: the Arrow schema to take else.
    """
    session = spark if spark is not None else active_session()
    holds.sweep()
    spark_schema = _spark_schema(session, schema, first)
    if not groups:
        return session.createDataFrame([], spark_schema)
    reader = PartitionReader(
        groups=tuple(pickle.dumps([Loan(ref) for ref in group]) for group in groups),
        schema=_to_arrow(spark_schema),
        explicit=schema is not None,
    )
    count = len(groups)
    frame = session.range(0, count, 1, count).mapInArrow(reader, spark_schema)
    holds.add(frame, [ref for group in groups for ref in group])
    return frame


@dataclass(frozen=True)
class PartitionReader:
    """The function of the plan: reads the objects of its partition from the store of
    its host, or over the network into it.  Pickled to the executors."""

    groups: tuple[bytes, ...]  #: each a pickled list of loans: only one is looked at
    schema: pa.Schema
    explicit: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read(number)

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        sparkray.init()
        for loan in pickle.loads(self.groups[number]):
            value = sparkray.get(loan.ref())
            try:
                table = as_table(value)
                for part in _in_parts(table):
                    ready = arrow_types.conformed(
                        part, self.schema, explicit=self.explicit
                    )
                    yield from ready.to_batches()
            except TypeError as error:
                raise TypeError(f"object {number} of this frame: {error}") from None


def as_table(value: Any) -> pa.Table:
    """Return a table of whatever has rows and columns.

    Raises:
        TypeError: it has none.
    """
    import pyarrow as pa

    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(
        value, "dtypes"
    ):
        try:
            return pa.Table.from_pandas(value, preserve_index=False)
        except pa.ArrowException as error:
            raise TypeError(f"pandas data that Arrow cannot hold: {error}") from None
    raise TypeError(
        f"a {type(value).__name__} is no pyarrow Table or RecordBatch, nor a pandas"
        " DataFrame"
    )


def _in_parts(table: pa.Table) -> Iterator[pa.Table]:
    rows = max(1, table.num_rows * _BATCH_BYTES // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def _schema_of(ref: ObjectRef) -> pa.Schema:
    """Return the schema of an object, read where it is."""
    sparkray.wait([ref])
    places = nodes_of(ref)
    if sparkray.get_runtime_context().get_node_id() in places:
        return read_schema(sparkray.get(ref))
    task = sparkray.remote(read_schema).options(num_cpus=0)
    if places:
        from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        near = NodeAffinitySchedulingStrategy(places[0], soft=True)
        task = task.options(scheduling_strategy=near)
    return sparkray.get(task.remote(ref))


def read_schema(value: Any) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return as_table(value).schema


def _spark_schema(session: Any, schema: Any, first: pa.Schema | None) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    if schema is None and first is None:
        raise ValueError("a DataFrame of no objects needs a schema: pass schema=")
    if schema is None:
        readable = arrow_types.readable_schema(first)
        return from_arrow_schema(
            arrow_types.all_nullable(readable), prefer_timestamp_ntz=True
        )
    if isinstance(schema, pa.Schema):
        readable = arrow_types.readable_schema(schema)
        return from_arrow_schema(readable, prefer_timestamp_ntz=True)
    return session.createDataFrame([], schema).schema


# --- both ways ------------------------------------------------------------------------


def _to_arrow(schema: Any) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, times in UTC.

    Raises:
        TypeError: Arrow has no type for a column.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    known = inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {}
    try:
        return to_arrow_schema(schema, **zone)
    except PySparkException as error:
        raise TypeError(str(error)) from error


def active_session() -> Any:
    """Return the active SparkSession.

    Raises:
        ValueError: there is none in this thread.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise ValueError("no SparkSession is active: pass spark=")
    return session


def check_driver(name: str) -> None:
    """Raise unless this process is a driver with a session.

    Raises:
        SparkrayError: it is not; says what to do.
    """
    if discovery.in_spark_task():
        raise SparkrayError(
            f"{name} works on the driver, not inside a UDF: a Spark task cannot start"
            " Spark jobs"
        )
    if not sparkray.is_initialized():
        raise SparkrayError(
            f"{name} needs a cluster on the executors: call sparkray.init(spark) first,"
            " or sparkray.init() where an init script has started one"
        )
