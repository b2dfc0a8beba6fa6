"""`map_batches` and the readers of frames, without Spark: blocks are put by hand."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.spark.batching import _common_schema, _Run
from sparkray.spark.dataframes import Block, PartitionReader
from sparkray.spark.state.batch_options import BatchOptions
from sparkray.spark.state.dispatch import BlockFacts
from sparkray.util import state
from sparkray.util.exchange import nodes_of
from tests.support import Tally, until


def block_of(rows: int, start: int = 0) -> Block:
    table = pa.table({"x": np.arange(start, start + rows), "pad": np.zeros(rows)})
    ref = sparkray.put(table)
    node = sparkray.get_runtime_context().get_node_id()
    return Block(ref, BlockFacts(node, rows, table.nbytes))


def values(run: _Run) -> list[Any]:
    tables = [sparkray.get(one.ref) for block in run.results() for one in block]
    return [x for table in tables for x in table.column(0).to_pylist()]


class Model:
    """Counts how often it is made; adds what it was made with."""

    def __init__(self, plus: int, made: Tally) -> None:
        made.add(os.getpid())
        self.plus = plus

    def __call__(self, batch: pd.DataFrame, times: int = 1) -> pd.DataFrame:
        assert len(batch) <= 100
        return pd.DataFrame({"y": (batch["x"] + self.plus) * times})


def test_a_function_sees_batches_and_the_order_is_kept(local: Any) -> None:
    def double(batch: pa.Table) -> dict[str, Any]:
        assert isinstance(batch, pa.Table) and batch.num_rows <= 1000
        return {"y": batch["x"].to_numpy() * 2, "pair": np.zeros((batch.num_rows, 2))}

    blocks = [block_of(200_000), block_of(0), block_of(1_500, 200_000)]
    options = BatchOptions(double, batch_size=1000, batch_format="pyarrow")
    results = _Run(blocks, options).results()
    assert len(results[0]) > 1 and not results[1] and len(results[2]) >= 1
    tables = [sparkray.get(one.ref) for block in results for one in block]
    assert [x for t in tables for x in t["y"].to_pylist()] == [
        2 * x for x in range(201_500)
    ]
    assert _common_schema([one for block in results for one in block]).names == [
        "y",
        "pair",
    ]


def test_a_class_is_made_once_in_each_actor_and_its_actors_end(
    local: Any, tmp_path: Path
) -> None:
    made = Tally(tmp_path)
    options = BatchOptions(
        Model,
        batch_size=100,
        concurrency=2,
        fn_kwargs={"times": 3},
        fn_constructor_args=(5, made),
    )
    run = _Run([block_of(300_000), block_of(500, 300_000)], options)
    assert values(run) == [(x + 5) * 3 for x in range(300_500)]
    assert len(set(made.lines())) == made.count() == 2
    until(lambda: all(not _alive(int(pid)) for pid in made.lines()))


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_slices_run_where_their_rows_are(two_nodes: Any) -> None:
    @sparkray.remote
    def make() -> Any:
        table = pa.table({"x": np.arange(400_000)})
        node = sparkray.get_runtime_context().get_node_id()
        return sparkray.put(table), BlockFacts(node, table.num_rows, table.nbytes)

    def where(batch: pd.DataFrame) -> pd.DataFrame:
        node = sparkray.get_runtime_context().get_node_id()
        return pd.DataFrame({"node": [node] * len(batch)})

    far = make.options(resources={"second": 1})
    blocks = [Block(*sparkray.get(task.remote())) for task in (make, far)]
    homes = [block.facts.node_id for block in blocks]
    options = BatchOptions(where, batch_size=100_000)
    results = _Run(blocks, options).results()
    for home, block in zip(homes, results, strict=True):
        assert block and all(home in nodes_of(one.ref) for one in block[:1])


def test_an_error_of_the_function_comes_with_its_traceback(
    local: Any, tmp_path: Path
) -> None:
    begun = Tally(tmp_path)

    def fails(batch: pd.DataFrame) -> pd.DataFrame:
        begun.add()
        if 5_000 in batch["x"].to_numpy():
            raise ZeroDivisionError("batch of 5000")
        return batch

    options = BatchOptions(fails, batch_size=10, concurrency=1)
    with pytest.raises(ZeroDivisionError, match="batch of 5000") as caught:
        _Run([block_of(200_000), block_of(200_000)], options).results()
    text = "".join(traceback.format_exception(caught.value))
    assert "in fails" in text
    del caught
    until(lambda: not any(row.state == "stored" for row in state.list_objects()))


class Broken:
    def __init__(self) -> None:
        raise LookupError("no model here")

    def __call__(self, batch: Any) -> Any:
        return batch


def test_a_model_that_cannot_be_made_is_the_error(local: Any) -> None:
    options = BatchOptions(Broken, batch_size=10, concurrency=2)
    with pytest.raises(Exception, match="no model here"):
        _Run([block_of(1000)], options).results()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda batch: None, "fn must return a batch"),
        (lambda batch: [1, 2], "fn must return a batch"),
        (lambda batch: {"x": [1], "y": [1, 2]}, "2"),
    ],
)
def test_what_is_no_batch_is_refused(shared: Any, returned: Any, message: str) -> None:
    with pytest.raises((TypeError, pa.ArrowInvalid), match=message):
        _Run([block_of(10)], BatchOptions(returned, batch_size=10)).results()


def test_batches_may_differ_in_columns_of_nulls_only(shared: Any) -> None:
    def nulls(batch: pd.DataFrame) -> pd.DataFrame:
        first = batch["x"].iloc[0] == 0
        return pd.DataFrame({"y": [None if first else "text"] * len(batch)})

    def types(batch: pd.DataFrame) -> pd.DataFrame:
        first = batch["x"].iloc[0] == 0
        return pd.DataFrame({"y": [1 if first else "text"] * len(batch)})

    blocks = [block_of(10), block_of(10, 10)]
    found = _Run(blocks, BatchOptions(nulls, batch_size=10)).results()
    assert "string" in str(_common_schema([found[0][0], found[1][0]]).field("y").type)
    blocks = [block_of(10), block_of(10, 10)]
    found = _Run(blocks, BatchOptions(types, batch_size=10)).results()
    with pytest.raises(TypeError, match="pass schema="):
        _common_schema([found[0][0], found[1][0]])


def test_without_rows_the_function_still_says_which_columns_there_are(
    shared: Any,
) -> None:
    def add(batch: pd.DataFrame) -> pd.DataFrame:
        return batch.assign(y=batch["x"] + 0.5)

    found = _Run([block_of(0), block_of(0)], BatchOptions(add, batch_size=10)).results()
    assert _common_schema(found[0]).names == ["x", "pad", "y"]
    assert found[0][0].rows == 0


def test_more_than_any_node_has_is_refused_at_once(shared: Any) -> None:
    with pytest.raises(SparkrayError, match="no node has 1 CPUs and 1 GPUs"):
        _Run([block_of(1)], BatchOptions(len, num_gpus=1, concurrency=1))


# --- readers ---


def read(value: Any, schema: pa.Schema, *, explicit: bool = False) -> pa.Table:
    import pickle

    from sparkray.util.exchange import Loan

    ref = sparkray.put(value)
    reader = PartitionReader((pickle.dumps([Loan(ref)]),), schema, explicit)
    numbers: Iterator[pa.RecordBatch] = iter([pa.record_batch({"id": [0]})])
    return pa.Table.from_batches(list(reader(numbers)), schema)


def test_tables_batches_and_pandas_frames_are_read_alike(shared: Any) -> None:
    table = pa.table({"x": np.arange(2_000_000), "s": ["a"] * 2_000_000})
    small = table.slice(0, 100)
    for value in (table, small.combine_chunks().to_batches()[0], small.to_pandas()):
        back = read(value, table.schema)
        assert back["x"].to_pylist()[:100] == list(range(100))
    assert read(table, table.schema).column(0).num_chunks > 1  # not all at once
    assert read(pa.table({"x": [1]}), pa.schema([("x", pa.float64())]), explicit=True)


def test_what_is_no_table_is_named(shared: Any) -> None:
    schema = pa.schema([("x", pa.int64())])
    with pytest.raises(TypeError, match="object 0 of this frame: a list is no"):
        read([1, 2], schema)
    with pytest.raises(TypeError, match="object 0 of this frame: its column 'x'"):
        read(pa.table({"x": ["a"]}), schema)
