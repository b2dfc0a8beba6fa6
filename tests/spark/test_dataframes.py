"""DataFrames to objects and back, on two executors of one core each.

One driver with one Spark for all tests here.  Results of Spark jobs that are larger
than a megabyte fail there, so rows that pass through the driver are seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import NEEDS_SPARK, Console, environment_of, new_folder, wait_until_gone

pytestmark = NEEDS_SPARK

BEGIN = """
    import gc, pickle, signal, traceback
    import numpy as np, pyarrow as pa
    from sparkray.spark import from_dataframe, map_batches, release, to_dataframe
    from sparkray.spark import start_cluster
    from sparkray.util import state
    from sparkray.util.exchange import nodes_of

    spark = start(
        spark_task_maxFailures="2",
        spark_driver_maxResultSize="1m",
        spark_sql_session_timeZone="Europe/Berlin",
    )
    start_cluster(spark, object_store_memory=24 * 2**20)

    def stored():
        nodes = [node for node in state.list_nodes() if node.alive]
        total = sum(node.resources["object_store_memory"] for node in nodes)
        return total - sum(node.available["object_store_memory"] for node in nodes)

    def collected():
        gc.collect()  # frames are parts of cycles
        spark._jvm.System.gc()
        return stored() == 0

    def until(condition, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "did not come to be in time"
            time.sleep(0.05)
        return True

    def kill_python_workers():
        import psutil
        mine = os.environ["TEST_FOLDER"]
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
                if "pyspark.daemon" in command and (
                    process.environ().get("TEST_FOLDER") == mine
                ):
                    process.kill()
            except psutil.Error:
                continue

    def refused(call, *args, **options):
        try:
            call(*args, **options)
        except Exception as error:
            return type(error).__name__ + ": " + str(error)
        return "no error"
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Console]:
    with new_folder() as folder:
        console = Console(folder, environment_of(folder))
        try:
            console.run(BEGIN)
            yield console
            console.run("sparkray.shutdown(); spark.stop()")
            wait_until_gone(folder, 15)
        finally:
            console.close()


def test_partitions_stay_on_their_hosts_outlive_their_python_workers_and_come_back(
    spark: Console,
) -> None:
    """One partition has 95 % of the rows, one has none."""
    told = spark.run(
        """
        frame = spark.range(0, 200_000, 1, 5).selectExpr(
            "id", "id * 0.5 as half", "cast(id as string) as `a name.with dots`"
        )
        number = "case when id < 190000 then 0 else 2 + id % 2 end"
        skewed = frame.selectExpr("*", f"{number} as part")
        skewed = skewed.repartitionByRange(4, "part")
        skewed = skewed.sortWithinPartitions("id").drop("part")
        empty = spark.range(0, 40, 1, 4).where("id >= 10 and id < 30")

        refs = from_dataframe(skewed)
        others = from_dataframe(empty)
        kill_python_workers()
        homes = {node for ref in refs for node in nodes_of(ref)}
        driver = sparkray.get_runtime_context().get_node_id()
        tables = sparkray.get(refs)
        rows = sorted(table.num_rows for table in tables)
        tell(rows=rows, homes=len(homes), on_driver=driver in homes)
        tell(total=sum(t["id"].to_numpy().sum() for t in tables).item())
        tell(names=tables[0].schema.names, order=[
            t["id"].to_pylist() for t in sparkray.get(others)
        ], types=[str(t.schema) for t in sparkray.get(others)])
        largest = max(table.nbytes for table in tables)
        tell(large=largest > 3_000_000)

        back = to_dataframe(refs)
        tell(partitions=back.rdd.getNumPartitions())
        text = "`a name.with dots`"
        sums = ["count(*)", "sum(id)", "sum(half)", f"sum(id * cast({text} as int))"]
        tell(same=back.selectExpr(*sums).first() == skewed.selectExpr(*sums).first())
        tell(schema=back.schema.simpleString(), wanted=skewed.schema.simpleString())
        del tables
        """
    )
    assert sum(told["rows"]) == 200_000 and max(told["rows"]) == 190_000
    assert told["homes"] == 2 and not told["on_driver"]
    assert told["total"] == 199_999 * 100_000
    assert told["names"] == ["id", "half", "a name.with dots"]
    assert told["order"] == [[], list(range(10, 20)), list(range(20, 30)), []]
    assert len(set(told["types"])) == 1
    assert told["large"] and told["partitions"] == 4
    assert told["same"] and told["schema"] == told["wanted"]


def test_objects_are_kept_while_a_plan_can_read_them_and_then_freed(
    spark: Console,
) -> None:
    told = spark.run(
        """
        refs = others = back = skewed = None
        gc.collect()
        until(collected)

        frame = to_dataframe([sparkray.put(pa.table({"x": np.arange(1_000_000)}))])
        derived = frame.selectExpr("x * 2 as y")
        del frame
        for _ in range(3):
            gc.collect(); spark._jvm.System.gc(); time.sleep(0.2)
        from sparkray.spark.holds import holds
        tell(holds=holds.sweep(), total=derived.groupBy().sum("y").first()[0])
        del derived
        tell(freed=until(collected))

        frame = to_dataframe([sparkray.put(pa.table({"x": np.arange(1_000_000)}))])
        release(frame)
        tell(released=until(lambda: stored() == 0), again=refused(release, frame))
        tell(gone=refused(frame.count))
        del frame
        """
    )
    assert told["holds"] == 1 and told["total"] == 999_999 * 1_000_000
    assert told["freed"] and told["released"]
    assert "nothing is held" in told["again"]
    assert "ObjectLostError" in told["gone"]


def test_attempts_that_spark_drops_leave_nothing(spark: Console) -> None:
    told = spark.run(
        """
        from sparkray.spark import dataframes

        class Dying(dataframes.PartitionWriter):
            def __call__(self, batches):
                from pyspark import TaskContext
                context = TaskContext.get()
                rows = list(super().__call__(batches))
                if context.partitionId() == 1 and context.attemptNumber() == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return iter(rows)

        def boom(batches):
            for batch in batches:
                if batch.column(0)[0].as_py() >= 300_000:
                    raise ZeroDivisionError("in a user's function")
                yield batch

        frame, kept = spark.range(0, 400_000, 1, 4), dataframes.PartitionWriter
        dataframes.PartitionWriter = Dying
        try:
            refs = from_dataframe(frame)
        finally:
            dataframes.PartitionWriter = kept
        sizes = {row.object_id: row.size_bytes for row in state.list_objects()}
        wanted = sum(-(-sizes[ref.hex()] // 4096) * 4096 for ref in refs)
        tell(only_those=until(lambda: stored() == wanted))
        tell(total=sum(len(table) for table in sparkray.get(refs)))
        del refs
        tell(said=refused(from_dataframe, frame.mapInArrow(boom, "id long")))
        tell(freed=until(lambda: stored() == 0))
        """
    )
    assert told["total"] == 400_000
    assert told["only_those"] and told["freed"]
    assert "in a user's function" in told["said"]


def test_more_than_a_store_holds_is_spilled_or_refused(spark: Console) -> None:
    told = spark.run(
        """
        wide = spark.range(0, 300_000, 1, 8).selectExpr(
            "id", *(f"id * {n} as x{n}" for n in range(29))
        )
        refs = from_dataframe(wide)
        tell(total=to_dataframe(refs).groupBy().sum("x3").first()[0])
        del refs
        gc.collect(); until(collected)
        tell(said=refused(from_dataframe, wide.coalesce(1)))
        tell(freed=until(lambda: stored() == 0))
        """
    )
    assert told["total"] == 3 * 299_999 * 150_000
    assert told["said"].startswith("ObjectStoreFullError")
    assert "df.repartition(n) makes smaller ones" in told["said"]
    assert told["freed"]


def test_types_survive_the_round_trip(spark: Console) -> None:
    """Many columns in each example, for an example is two Spark jobs."""
    told = spark.run(
        """
        import hypothesis
        from sparkray.spark import arrow_types
        from tests.spark.arrow_tables import tables

        examples = 0

        @hypothesis.settings(
            max_examples=2,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(tables())
        def round_trip(table):
            global examples
            examples += 1
            pieces = [table, table.slice(1), table.slice(0, 0)]
            frame = to_dataframe([sparkray.put(piece) for piece in pieces])
            stands = arrow_types.all_nullable(
                arrow_types.readable_schema(table.schema)
            )
            for piece, back in zip(
                pieces, sparkray.get(from_dataframe(frame)), strict=True
            ):
                assert back.schema.equals(stands), (back.schema, stands)
                expected = arrow_types.brought_to(piece, back.schema)
                assert back.equals(expected), (back.to_pylist(), expected.to_pylist())

        round_trip()
        tell(examples=examples)
        """
    )
    assert told["examples"] >= 2


def test_what_cannot_be_read_is_said_with_the_object_and_its_column(
    spark: Console,
) -> None:
    told = spark.run(
        """
        import pandas as pd
        one = sparkray.put(pa.table({"x": [1, 2], "s": ["a", "b"]}))
        two = sparkray.put(pd.DataFrame({"x": [3.0, 4.5], "s": ["c", None]}))
        tell(types=refused(to_dataframe([one, two]).count))
        cast = to_dataframe([one, two], schema="x double, s string")
        tell(cast=sorted(map(tuple, cast.collect()), key=str))
        tell(null=sorted(map(tuple, to_dataframe(
            [one, sparkray.put(pa.table({"s": pa.nulls(1), "x": pa.nulls(1)}))]
        ).collect()), key=str))
        other = sparkray.put(pa.table({"y": [1]}))
        tell(names=refused(to_dataframe([one, other]).count))
        tell(value=refused(to_dataframe, [sparkray.put([1, 2])]))
        tell(ref=refused(to_dataframe, [3]), empty=refused(to_dataframe, []))
        none = to_dataframe([], schema=pa.schema([("x", pa.int8())]))
        tell(none=none.schema.simpleString())
        tell(frame=refused(from_dataframe, [1]))
        twice = spark.range(3).selectExpr("id as a", "id + 1 as a")
        tell(twice=sparkray.get(from_dataframe(twice.coalesce(1)))[0].schema.names)

        def inside(batches):
            from_dataframe(FakeFrame())
            yield from batches

        class FakeFrame:
            mapInArrow = toDF = sparkSession = None

        tell(inside=refused(spark.range(1).mapInArrow(inside, "id long").collect))
        """
    )
    assert "object 1 of this frame: its column 'x' is double" in told["types"]
    assert told["cast"] == [[1.0, "a"], [2.0, "b"], [3.0, "c"], [4.5, None]]
    assert told["null"] == [[1, "a"], [2, "b"], [None, None]]
    assert "its columns are ['y'], not ['x', 's']" in told["names"]
    assert "a list is no pyarrow Table" in told["value"]
    assert told["ref"].startswith("TypeError: to_dataframe takes a list of ObjectRefs")
    assert told["empty"].startswith("ValueError") and "pass schema=" in told["empty"]
    assert told["none"] == "struct<x:tinyint>"
    assert told["frame"].startswith("TypeError: expected a Spark DataFrame")
    assert told["twice"] == ["a", "a"]
    assert "works on the driver, not inside a UDF" in told["inside"]


def test_batches_go_to_models_on_the_nodes_and_back_into_a_frame(
    spark: Console,
) -> None:
    told = spark.run(
        """
        class Model:
            def __init__(self, weight):
                self.weight, self.key = weight, os.urandom(4).hex()

            def __call__(self, batch):
                node = sparkray.get_runtime_context().get_node_id()
                return pd.DataFrame({
                    "id": batch["id"], "score": batch["id"] * self.weight,
                    "model": self.key, "node": node, "rows": len(batch),
                })

        frame = spark.range(0, 400_000, 1, 4)
        scored = map_batches(frame, Model, batch_size=1000, concurrency=2,
                             fn_constructor_args=[0.5])
        found = scored.groupBy("model").agg({"rows": "max"}).collect()
        tell(models=len(found), largest=max(row["max(rows)"] for row in found))
        tell(partitions=scored.rdd.getNumPartitions())
        some = scored.select("id").where("id % 50000 = 7").collect()
        tell(order=[row[0] for row in some])
        tell(sum=scored.groupBy().sum("score").first()[0])

        def fails(batch):
            raise LookupError("not for me")

        try:
            map_batches(frame, fails)
        except LookupError as error:
            tell(raised=str(error), remote="in fails" in traceback.format_exc())
        tell(wrong=refused(map_batches, frame, 7))

        def empty(batch):
            return batch[:0]

        tell(none=map_batches(frame, empty, batch_size=None).count())
        del scored, found
        gc.collect()
        tell(freed=until(collected))
        """
    )
    assert told["models"] == 2 and told["largest"] == 1000
    assert told["partitions"] == 4
    assert told["order"] == [7 + 50_000 * n for n in range(8)]
    assert told["sum"] == 0.5 * 399_999 * 200_000
    assert "not for me" in told["raised"] and told["remote"]
    assert told["wrong"].startswith("TypeError: fn must be a function")
    assert told["none"] == 0 and told["freed"]
