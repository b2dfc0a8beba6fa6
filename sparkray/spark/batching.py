"""`map_batches`: a function or a model over the rows of a DataFrame, batch by batch.

Spark                 this process                workers, on the nodes of the rows
  partitions ──ids──>   blocks, cut into slices
                        a window of slices ─────>   rows from the store, fn(batch)
                        refs of tables <─────────   tables, into the store
  a frame    <──loans── refs, in order
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.spark import arrow_types, dataframes, session
from sparkray.spark.dataframes import Block, as_table
from sparkray.spark.state.batch_options import BatchOptions
from sparkray.spark.state.dispatch import Dispatcher, Slice, cut
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkray import ObjectRef

DEFAULT_BATCH_SIZE: Final = 4096
#: Slices given to a worker ahead of the one it computes.
AHEAD: Final = 1
#: How often the nodes are looked at anew while tasks run.
LOOK_S: Final = 2.0
#: An actor whose process dies is made again so often, and its slice computed again.
ACTOR_RESTARTS: Final = 3


def map_batches(
    df: Any,
    fn: Any,
    *,
    batch_size: int | None = DEFAULT_BATCH_SIZE,
    concurrency: int | None = None,
    batch_format: str = "pandas",
    schema: Any = None,
    fn_args: Sequence[Any] = (),
    fn_kwargs: Mapping[str, Any] | None = None,
    fn_constructor_args: Sequence[Any] = (),
    fn_constructor_kwargs: Mapping[str, Any] | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> Any:
    """Apply a function to all rows of a DataFrame, in batches, now; return the results.

    Args:
        df: its partitions are computed first, and stay where Spark has computed them.
        fn: takes a batch and returns one, with any number of rows: a pandas DataFrame,
            a pyarrow Table or RecordBatch, or a dict of columns.  A function runs as
            tasks.  Of a class objects are made once in each of ``concurrency`` actors
            (a model is loaded there) and then called with the batches.
        batch_size: rows of a batch; the last one of a partition has what is left.
            None: each partition is one batch.
        concurrency: how many tasks or actors run at once; default: as many as the
            nodes have CPUs (or GPUs, if those are asked for) for, with the nodes that
            a cluster which follows the demand may get.
        batch_format: what ``fn`` gets: "pandas" or "pyarrow" (a Table).
        schema: of the results, as for `to_dataframe`; default: what ``fn`` returns.
        fn_args, fn_kwargs: passed to each call, after the batch.
        fn_constructor_args, fn_constructor_kwargs: passed to the class.
        num_cpus, num_gpus: of each task or actor.

    Returns:
        a DataFrame with the partitions of ``df``, in the order of its rows.

    Raises:
        TypeError, ValueError: a wrong argument, or ``fn`` returned something else than
            a batch, or batches of different columns.
        TaskError: ``fn`` raised; also an instance of what it raised, with the traceback
            of the worker.
        SparkrayError: no session, or nodes without what a task needs.
        Exception: what Spark raises when computing ``df`` fails.
    """
    options = BatchOptions(
        function=fn,
        batch_size=batch_size,
        concurrency=concurrency,
        batch_format=batch_format,
        fn_args=fn_args,
        fn_kwargs=fn_kwargs or {},
        fn_constructor_args=fn_constructor_args,
        fn_constructor_kwargs=fn_constructor_kwargs or {},
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    blocks = dataframes.blocks_of(df)
    results = _Run(blocks, options).results()
    found = [result for block in results for result in block]
    first = None if schema is not None else _common_schema(found)
    groups = [[one.ref for one in block if one.rows] for block in results]
    return dataframes.frame_of(groups, df.sparkSession, schema, first)


@dataclass(frozen=True)
class _Result:
    """A slice that was computed."""

    ref: ObjectRef
    rows: int
    schema: pa.Schema


@dataclass(frozen=True)
class Batcher:
    """What a worker does with a slice.  Travels to workers."""

    batch_size: int | None
    batch_format: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(
        self, call: Callable[..., Any], block: pa.Table, start: int, stop: int
    ) -> tuple[pa.Table, tuple[int, pa.Schema]]:
        """Return the results of all batches as one table; its rows and schema."""
        import pyarrow as pa

        step = self.batch_size or max(1, stop - start)
        starts = range(start, stop, step) or range(start, start + 1)  # no rows: one
        tables = []
        for begin in starts:
            rows = block.slice(begin, min(step, stop - begin))
            batch = rows.to_pandas() if self.batch_format == "pandas" else rows
            tables.append(_table_of(call(batch, *self.args, **self.kwargs)))
        try:
            schema = arrow_types.common_schema([table.schema for table in tables])
            fitting = [_with_decimals_of(table, schema) for table in tables]
            table = pa.concat_tables(fitting, promote_options="default")
        except pa.ArrowException as error:
            raise TypeError(f"fn returned batches that differ: {error}") from None
        return table, (table.num_rows, table.schema.remove_metadata())


def _table_of(value: Any) -> pa.Table:
    import pyarrow as pa

    if not isinstance(value, Mapping):
        try:
            return as_table(value)
        except TypeError as error:
            raise TypeError(
                f"fn must return a batch, a table or a dict: {error}"
            ) from None
    columns = {
        str(name): pa.array(list(column) if _dimensions(column) > 1 else column)
        for name, column in value.items()
    }
    return pa.table(columns)


def _with_decimals_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    types = {field.name: field.type for field in schema}
    for number, field in enumerate(table.schema):
        wanted = types[field.name]
        if pa.types.is_decimal(field.type) and field.type != wanted:
            column = table.column(number).cast(wanted)
            table = table.set_column(number, field.with_type(wanted), column)
    return table


def _dimensions(column: Any) -> int:
    return int(getattr(column, "ndim", 1))


class _Model:
    """An actor: holds the user's object."""

    def __init__(
        self,
        kind: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        batcher: Batcher,
    ) -> None:
        self._call = kind(*args, **kwargs)
        self._batcher = batcher

    def place(self) -> str:
        return sparkray.get_runtime_context().get_node_id()

    def run(self, block: Any, start: int, stop: int) -> Any:
        return self._batcher.run(self._call, block, start, stop)


# --- this process ---------------------------------------------------------------------


@dataclass(eq=False)
class _Seat:
    """A place where slices are computed one after the other."""

    node_id: str
    #: Starts one: block, start, stop -> refs of the table and of its facts.
    start: Callable[[ObjectRef, int, int], list[ObjectRef]]
    busy: int = 0


class _Run:
    """One `map_batches`: keeps all seats busy until every slice is computed."""

    def __init__(self, blocks: list[Block], options: BatchOptions) -> None:
        self._blocks: list[Block | None] = [*blocks]
        self._options = options
        self._batcher = Batcher(
            options.batch_size,
            options.batch_format,
            tuple(options.fn_args),
            dict(options.fn_kwargs),
        )
        facts = [block.facts for block in blocks]
        room = _seats(options)
        self._seats_wanted = options.concurrency or room
        self._slices = cut(facts, options.batch_size, self._seats_wanted)
        if not self._slices:  # fn says what columns there are
            self._slices = [Slice(0, 0, 0, 0, facts[0].node_id)]
        self._left = [0] * len(blocks)
        for one in self._slices:
            self._left[one.block] += 1
        self._done: dict[tuple[int, int], _Result] = {}
        self._running: dict[ObjectRef, tuple[_Seat, Slice, ObjectRef]] = {}

    def results(self) -> list[list[_Result]]:
        """Return the results of each block, in order.

        Raises:
            Exception: what the first failed slice raised; the others are stopped.
        """
        if self._options.is_class:
            self._with_actors()
        else:
            self._with_tasks()
        ordered: list[list[_Result]] = [[] for _ in self._blocks]
        for key in sorted(self._done):
            ordered[key[0]].append(self._done[key])
        return ordered

    # --- tasks ---

    def _with_tasks(self) -> None:
        options, batcher, function = (
            self._options,
            self._batcher,
            self._options.function,
        )

        def run_slice(block: Any, start: int, stop: int) -> Any:
            return batcher.run(function, block, start, stop)

        task = sparkray.remote(run_slice).options(
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus,
            num_returns=2,
            name=getattr(function, "__name__", "map_batches"),
        )

        def seat(node_id: str) -> _Seat:
            near = NodeAffinitySchedulingStrategy(node_id, soft=True)
            start = task.options(scheduling_strategy=near).remote
            return _Seat(node_id, start)

        seats: dict[tuple[str, int], _Seat] = {}
        ahead = 0 if options.concurrency else AHEAD  # those could run at once, too
        looked_s = -LOOK_S
        dispatcher = Dispatcher(self._slices)
        try:
            while True:
                if time.monotonic() > looked_s + LOOK_S:
                    looked_s = time.monotonic()
                    for place in _places(options, self._seats_wanted):
                        if place not in seats:
                            seats[place] = seat(place[0])
                self._fill(seats.values(), dispatcher, options.concurrency, ahead)
                if not self._running:
                    return
                self._take_one([])
        except KeyboardInterrupt:
            # not after errors: what interrupts an import breaks it for its process,
            # and the few slices under way end by themselves
            self._cancel()
            raise

    # --- actors ---

    def _with_actors(self) -> None:
        options = self._options
        kind = sparkray.remote(_Model).options(
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus,
            max_restarts=ACTOR_RESTARTS,
            max_task_retries=ACTOR_RESTARTS,
            scheduling_strategy="SPREAD",
        )
        count = min(self._seats_wanted, len(self._slices))
        made = [
            kind.remote(
                options.function,
                tuple(options.fn_constructor_args),
                dict(options.fn_constructor_kwargs),
                self._batcher,
            )
            for _ in range(count)
        ]
        coming = {actor.place.remote(): actor for actor in made}
        seats: list[_Seat] = []
        dispatcher = Dispatcher(self._slices)
        try:
            while len(self._done) < len(self._slices):
                for ref in self._take_one(list(coming)):
                    run = coming.pop(ref).run.options(num_returns=2).remote
                    seats.append(_Seat(sparkray.get(ref), run))
                self._fill(seats, dispatcher, None, AHEAD)
        finally:
            self._cancel()
            for actor in made:
                sparkray.kill(actor)

    # --- both ---

    def _fill(
        self,
        seats: Iterable[_Seat],
        dispatcher: Dispatcher,
        at_once: int | None,
        ahead: int,
    ) -> None:
        """Give every seat a slice, and then ``ahead`` more, ``at_once`` in all."""
        for depth in range(1, 2 + ahead):
            for seat in seats:
                if seat.busy >= depth or len(self._running) == at_once:
                    continue
                one = dispatcher.take(seat.node_id)
                if one is None:
                    return
                block = self._blocks[one.block]
                assert block is not None
                table, facts = seat.start(block.ref, one.start, one.stop)
                seat.busy += 1
                self._running[facts] = (seat, one, table)

    def _take_one(self, others: list[ObjectRef]) -> list[ObjectRef]:
        """Wait for one slice, or one of ``others``; return those of them."""
        ready, _ = sparkray.wait([*self._running, *others], num_returns=1)
        for ref in ready:
            if ref in self._running:
                seat, one, table = self._running.pop(ref)
                rows, schema = sparkray.get(ref)
                seat.busy -= 1
                self._finish(one, _Result(table, rows, schema))
        return [ref for ref in ready if ref in others]

    def _finish(self, one: Slice, result: _Result) -> None:
        self._done[one.block, one.place] = result
        self._left[one.block] -= 1
        if not self._left[one.block]:
            self._blocks[one.block] = None  # its rows are needed no more

    def _cancel(self) -> None:
        for _, _, table in self._running.values():
            sparkray.cancel(table)
        self._running.clear()


def _common_schema(results: Sequence[_Result]) -> pa.Schema:
    """Return the schema that all results fit into; a column of nulls fits any.

    Raises:
        TypeError: they differ.
    """
    import pyarrow as pa

    some = [one.schema for one in results if one.rows] or [results[0].schema]
    distinct = list(dict.fromkeys(some))
    try:
        return arrow_types.common_schema(distinct)
    except pa.ArrowException as error:
        raise TypeError(
            "fn returned batches of different types: return the same columns for"
            f" every batch, or pass schema=; {error}"
        ) from None


def _places(options: BatchOptions, wanted: int) -> Iterator[tuple[str, int]]:
    """Yield the seats of all nodes: node id and number, the nodes taking turns."""
    rooms = _rooms(options)
    if options.concurrency is not None and sum(rooms.values()) < wanted:
        rooms = dict.fromkeys(rooms, wanted)  # they will wait there
    for number in range(max(rooms.values(), default=0)):
        for node_id, room in rooms.items():
            if number < room:
                yield node_id, number


def _seats(options: BatchOptions) -> int:
    """Return for how many tasks at once the nodes have room, those too that an elastic
    cluster may get.

    Raises:
        SparkrayError: for none.
    """
    rooms = _rooms(options).values()
    if not rooms:
        needs = f"{options.num_cpus:g} CPUs and {options.num_gpus:g} GPUs"
        raise SparkrayError(f"no node has {needs}; see sparkray.cluster_resources()")
    return sum(rooms) + max(rooms) * session.nodes_to_come()


def _rooms(options: BatchOptions) -> dict[str, int]:
    rooms = {}
    for node in sparkray.nodes():
        has = node["Resources"] if node["Alive"] else {}
        needs = {"CPU": options.num_cpus, "GPU": options.num_gpus}
        fits = [int(has.get(name, 0) / need) for name, need in needs.items() if need]
        room = min(fits) if fits else int(has.get("CPU", 0))
        if room:
            rooms[node["NodeID"]] = room
    return rooms
