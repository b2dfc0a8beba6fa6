"""UDFs of every kind on ``local-cluster[2,1,1024]``, and RDD functions beside them.

All but the last test share one Spark and one sparkray cluster: Python workers go from
one test to the next, as they do in a notebook.
"""

from collections.abc import Callable, Iterator

import pytest

from .conftest import NEEDS_SPARK, Console, Driver, wait_until_gone

pytestmark = NEEDS_SPARK

#: In each kind of function the first use of sparkray is another one.
KINDS = """
    from collections.abc import Iterator
    from pyspark.sql import functions as F
    from pyspark.sql.functions import pandas_udf

    @sparkray.remote
    def square(x):
        return x * x

    @sparkray.remote
    class Adder:
        def __init__(self):
            self.total = 0
        def add(self, x):
            self.total += x
            return x * x
        def look(self):
            return self.total

    def here(kind, answer):
        context = sparkray.get_runtime_context()
        place = f"{context.get_job_id()} {context.get_worker_id()} {os.getpid()}"
        return f"{kind} {answer} {place}"

    def make_kinds():
        three, adder = sparkray.put(3), Adder.options(name="adder").remote()
        big = sparkray.put(np.arange(200_000))

        def in_arrow(batches):  # a ref in the closure
            import pyarrow as pa
            for batch in batches:
                said = here("mapInArrow", sparkray.get(three) ** 2)
                texts = pa.array([said] * batch.num_rows)
                yield pa.RecordBatch.from_arrays([batch.column(0), texts], ["id", "a"])

        def in_pandas(frames):  # a remote function
            for frame in frames:
                answer = sparkray.get(square.remote(3))
                yield frame.assign(b=here("mapInPandas", answer))

        @pandas_udf("string")
        def scalar(ids: pd.Series) -> pd.Series:  # put
            ref = sparkray.put(3)
            return pd.Series([here("scalar", sparkray.get(ref) ** 2)] * len(ids))

        @pandas_udf("string")
        def iterator(series: Iterator[pd.Series]) -> Iterator[pd.Series]:  # a handle
            for ids in series:
                said = here("iterator", sparkray.get(adder.add.remote(3)))
                yield pd.Series([said] * len(ids))

        @pandas_udf("string")
        def aggregate(ids: pd.Series) -> str:  # init
            sparkray.init()
            return here("aggregate", sparkray.get(square.remote(3)))

        def grouped(rows):  # a name
            handle = sparkray.get_actor("adder")
            said = here("applyInPandas", sparkray.get(handle.add.remote(3)))
            return pd.DataFrame({"text": [said]})

        def cogrouped(left, right):  # get of a large object
            return pd.DataFrame({"text": [here("cogrouped", sparkray.get(big)[9])]})

        def partition(rows):  # the context, in a generator
            for _ in rows:
                yield here("mapPartitions", 9)

        def each(row):
            sparkray.get(adder.add.remote(1000))

        return locals()

    def run_kinds(kinds):
        frame = spark.range(2, numPartitions=2)
        frame = frame.mapInArrow(kinds["in_arrow"], "id long, a string")
        frame = frame.mapInPandas(kinds["in_pandas"], "id long, a string, b string")
        frame = frame.select("a", "b", kinds["scalar"]("id"), kinds["iterator"]("id"))
        texts = [text for row in frame.collect() for text in row]
        groups = spark.range(2, numPartitions=1).groupBy("id")
        frames = [
            groups.agg(kinds["aggregate"](F.col("id")).alias("text")).select("text"),
            groups.applyInPandas(kinds["grouped"], "text string"),
            groups.cogroup(groups).applyInPandas(kinds["cogrouped"], "text string"),
        ]
        frame = frames[0].union(frames[1]).union(frames[2])
        texts += [row["text"] for row in frame.collect()]
        rdd = spark.sparkContext.parallelize(range(2), 2)
        texts += rdd.mapPartitions(kinds["partition"]).collect()
        rdd.foreach(kinds["each"])
        return [text.split() for text in texts]
"""
NAMES = {
    "mapInArrow",
    "mapInPandas",
    "scalar",
    "iterator",
    "aggregate",
    "applyInPandas",
    "cogrouped",
    "mapPartitions",
}
#: What tests tell by: files in the test's folder.
SIGNS = """
    from pathlib import Path
    from tests.support import Gate, Tally, until

    FOLDER = Path(os.environ["TEST_FOLDER"])

    def free_cpus():
        return sparkray.available_resources().get("CPU", 0)

    def free_store():
        return sparkray.available_resources()["object_store_memory"]

    @sparkray.remote
    def hold(begun, ended, gate):
        begun.add(os.getpid())
        try:
            gate.wait(120)
        finally:
            ended.add(os.getpid())
"""


@pytest.fixture(scope="module")
def cluster(one_console: Console) -> Iterator[Console]:
    """The console with a cluster that the tests here share."""
    one_console.run("import numpy as np\n")
    one_console.run(KINDS)
    one_console.run(SIGNS)
    one_console.run("spark = start()\ncontext = sparkray.init(spark)")
    yield one_console
    one_console.run("sparkray.shutdown()")
    wait_until_gone(one_console.folder, 10)


def test_every_kind_of_function_joins_by_its_first_use_and_its_worker_stays_connected(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        kinds = make_kinds()
        tell(job=context.job_id, first=run_kinds(kinds), again=run_kinds(kinds))
        tell(total=sparkray.get(kinds.pop("adder").look.remote()))
        del kinds
        """
    )
    for texts in (told["first"], told["again"]):
        assert {kind for kind, *_ in texts} == NAMES
        assert {answer for _, answer, *_ in texts} == {"9"}
        assert {job for _, _, job, *_ in texts} == {told["job"]}
    first, again = (
        {pid: worker_id for *_, worker_id, pid in told[name]}
        for name in ("first", "again")
    )
    assert len(first) >= 4  # the first query needs so many at a time
    both = first.keys() & again.keys()
    assert both and all(first[pid] == again[pid] for pid in both)
    assert told["total"] == 2 * (2 * 3 + 2 * 3 + 2 * 1000)


def test_refs_and_handles_in_broadcast_variables_outlive_a_udf_that_leaves(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        adder = Adder.remote()
        kept = spark.sparkContext.broadcast({"ref": sparkray.put(7), "actor": adder})

        def use(rows):
            value = kept.value
            rows["x"] = sparkray.get(square.remote(sparkray.get(value["ref"])))
            rows["y"] = sparkray.get(value["actor"].add.remote(2))
            rows["pid"] = os.getpid()
            return rows

        def leave(rows):
            use(rows)
            sparkray.shutdown()
            sparkray.shutdown()
            return rows

        frame = spark.range(2, numPartitions=2).groupBy("id")
        schema = "id long, x long, y long, pid long"
        for name, function in (("before", use), ("leaving", leave), ("after", use)):
            rows = frame.applyInPandas(function, schema).collect()
            tell(**{name: [[row["x"], row["y"]] for row in rows]})
        tell(total=sparkray.get(adder.look.remote()), nodes=len(executors()))
        kept.destroy()
        del adder
        """
    )
    assert told["before"] == told["leaving"] == told["after"] == [[49, 4]] * 2
    assert told["total"] == 3 * 2 * 2 and told["nodes"] == 2


def test_a_search_and_a_pool_inside_of_udfs_leave_nothing_behind(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        def search(rows):
            import joblib
            from sklearn.linear_model import Ridge
            from sklearn.model_selection import GridSearchCV
            from sparkray.util.futures import Executor
            from sparkray.util.joblib import register_sparkray

            register_sparkray()
            rng = np.random.default_rng(int(rows["id"].iloc[0]))
            x = rng.normal(size=(60, 20))
            y = x[:, 0] + rng.normal(size=60) * 3
            grid = GridSearchCV(Ridge(), {"alpha": [0.1, 3.0, 30.0, 300.0]}, cv=2)
            alone = grid.fit(x, y).best_params_["alpha"]
            with joblib.parallel_config("sparkray"):
                found = grid.fit(x, y).best_params_["alpha"]
            with Executor(2) as pool:
                squares = list(pool.map(lambda x: (x * x, os.getpid()), range(8)))
            apart = all(pid != os.getpid() for _, pid in squares)
            total = sum(square for square, _ in squares)
            row = {"alone": alone, "found": found, "total": total, "apart": apart}
            return pd.DataFrame([row])

        schema = "alone double, found double, total long, apart boolean"
        groups = spark.range(2, numPartitions=2).groupBy("id")
        rows = groups.applyInPandas(search, schema).collect()
        tell(rows=[row.asDict() for row in rows])
        until(lambda: free_cpus() == 2)
        """
    )
    assert len(told["rows"]) == 2
    for row in told["rows"]:
        assert row["found"] == row["alone"]
        assert row["total"] == 140 and row["apart"]


def test_what_fails_inside_is_the_udfs_error_with_the_remote_traceback(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        class Unheard(Exception):
            pass

        @sparkray.remote
        def bottom(x):
            raise Unheard(f"cannot {x}")

        @sparkray.remote
        def middle(x):
            return sparkray.get(bottom.remote(x))

        @sparkray.remote
        class Failing:
            def __init__(self):
                raise Unheard("no actor")
            def call(self):
                pass

        def fails(rows):
            return sparkray.get(middle.remote("swim"))

        def fails_in_actor(rows):
            return sparkray.get(Failing.remote().call.remote())

        def catches(rows):
            try:
                sparkray.get(middle.remote("fly"))
            except Unheard as error:
                return pd.DataFrame({"text": [f"caught {error.args}"]})

        @sparkray.remote(max_retries=0)
        def crash():
            os._exit(3)

        def crashes(rows):
            sparkray.get(crash.remote())

        groups = spark.range(1, numPartitions=1).groupBy("id")
        simplified = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
        for name, function, simple in (
            ("plain", fails, "false"),
            ("simplified", fails, "true"),
            ("actor", fails_in_actor, "true"),
            ("crash", crashes, "true"),
        ):
            spark.conf.set(simplified, simple)
            try:
                groups.applyInPandas(function, "text string").collect()
            except Exception as error:
                tell(**{name: [type(error).__name__, str(error)]})
        spark.conf.unset(simplified)
        tell(caught=groups.applyInPandas(catches, "text string").first()["text"])
        """
    )
    for name in ("plain", "simplified"):
        kind, text = told[name]
        assert kind == "PythonException"
        for part in ("Unheard", "cannot swim", "in bottom", "in middle", "in fails"):
            assert part in text, text
    for part in ("Unheard", "no actor", "in __init__", "in fails_in_actor"):
        assert part in told["actor"][1], told["actor"][1]
    for part in ("WorkerCrashedError", "exited with code 3"):
        assert part in told["crash"][1], told["crash"][1]
    assert "cannot fly" in told["caught"]


def test_a_cancelled_spark_job_ends_its_udfs_wait_and_frees_what_it_held(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        import threading
        begun, ended, gate = Tally(FOLDER), Tally(FOLDER), Gate(FOLDER)
        stored = free_store()

        def wait(rows):
            large = sparkray.put(np.zeros(1_000_000))
            begun.add(f"udf {os.getpid()}")
            sparkray.get([hold.remote(begun, ended, gate) for _ in range(3)])
            return rows if large else None

        said = []

        def run():
            spark.sparkContext.setJobGroup("to be cancelled", "it waits")
            try:
                groups = spark.range(1, numPartitions=1).groupBy("id")
                groups.applyInPandas(wait, "id long").collect()
            except Exception as error:
                said.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: begun.count() == 3, 60)  # the UDF and two tasks: all CPUs
        (udf,) = [int(line[4:]) for line in begun.lines() if line.startswith("udf")]
        spark.sparkContext.cancelJobGroup("to be cancelled")
        thread.join(60)
        tell(said=said[0], ended=not thread.is_alive())
        until(lambda: not os.path.exists(f"/proc/{udf}"), 30)
        until(lambda: free_cpus() == 2, 30)
        until(lambda: ended.count() == 2, 30)
        until(lambda: free_store() == stored, 30)
        tell(begun=begun.count(), square=sparkray.get(square.remote(4), timeout=60))
        tell(action=action(spark, 2))
        """
    )
    assert "cancel" in told["said"].lower() and told["ended"]
    assert told["begun"] == 3  # the task that waited was not begun any more
    assert told["square"] == 16 and told["action"] == 2


def test_spark_jobs_of_several_threads_share_the_job_of_their_driver(
    cluster: Console,
) -> None:
    told = cluster.run(
        """
        from concurrent.futures import ThreadPoolExecutor

        shared, adder = sparkray.put(list(range(100))), Adder.remote()

        def work(rows):
            squares = sparkray.get([square.remote(x) for x in sparkray.get(shared)])
            sparkray.get(adder.add.remote(1))
            rows["total"] = sum(squares)
            rows["job"] = sparkray.get_runtime_context().get_job_id()
            return rows

        def in_rdd(numbers):
            for number in numbers:
                yield number, sum(sparkray.get([square.remote(x) for x in range(100)]))

        def run(number):
            groups = spark.range(2, numPartitions=2).groupBy("id")
            schema = "id long, total long, job string"
            rows = groups.applyInPandas(work, schema).collect()
            pairs = spark.sparkContext.parallelize([number], 1).mapPartitions(in_rdd)
            return [[row["total"], row["job"]] for row in rows], pairs.collect()[0][1]

        with ThreadPoolExecutor(3) as threads:
            tell(found=list(threads.map(run, range(3))), job=context.job_id)
        tell(total=sparkray.get(adder.look.remote()))
        """
    )
    expected = sum(x * x for x in range(100))
    assert told["total"] == 3 * 2
    for rows, of_rdd in told["found"]:
        assert rows == [[expected, told["job"]]] * 2
        assert of_rdd == expected


def test_workers_forked_for_each_task_join_and_take_along_what_they_started(
    run_driver: Callable[[str], Driver],
) -> None:
    """From a daemon that has sparkray loaded, to a cluster that was there already."""
    told = run_driver(
        KINDS
        + SIGNS
        + """
    import pickle, subprocess
    import numpy as np

    (FOLDER / "own_daemon.py").write_text(
        "import sparkray\\n"
        "from pyspark.daemon import manager\\n"
        "sparkray.init, sparkray.get_actor, sparkray.remote(len)\\n"
        "manager()\\n"
    )
    os.environ["PYTHONPATH"] += os.pathsep + str(FOLDER)
    spark = start(
        "local[2]",
        spark_python_worker_reuse="false",
        spark_python_daemon_module="own_daemon",
    )
    def cli(*words):
        subprocess.run([sys.executable, "-m", "sparkray", *words], check=True)

    cli("start", "--head", "--num-cpus=2")
    context = sparkray.init(namespace="the notebook's")
    begun, ended, gate = Tally(FOLDER), Tally(FOLDER), Gate(FOLDER)
    stored = free_store()

    def starts(frames):
        hold.remote(begun, ended, gate)
        sparkray.put(np.zeros(1_000_000))
        until(lambda: begun.count() == 1, 60)
        yield from frames

    spark.range(1, numPartitions=1).mapInPandas(starts, "id long").collect()
    until(lambda: ended.count() == 1, 30)
    until(lambda: free_cpus() == 2, 30)
    until(lambda: free_store() == stored, 30)
    tell(job=context.job_id, texts=run_kinds(make_kinds()))

    def puts(frames):  # and hands refs to the driver, each worker ends with its task
        for frame in frames:
            refs = [sparkray.put("small"), sparkray.put(np.arange(1_000_000))]
            yield pd.DataFrame({"refs": [pickle.dumps(refs)], "pid": [os.getpid()]})

    found = spark.range(2, numPartitions=2).mapInPandas(puts, "refs binary, pid int")
    rows = found.collect()
    until(lambda: not any(os.path.exists(f"/proc/{row.pid}") for row in rows), 30)
    kept = [sparkray.get(pickle.loads(bytes(row.refs)), timeout=30) for row in rows]
    tell(kept=[[small, int(large.sum())] for small, large in kept])
    sparkray.shutdown()
    cli("stop")
    spark.stop()
    """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    assert {kind for kind, *_ in results["texts"]} == NAMES
    assert {answer for _, answer, *_ in results["texts"]} == {"9"}
    assert {job for _, _, job, *_ in results["texts"]} == {results["job"]}
    assert results["kept"] == [["small", sum(range(1_000_000))]] * 2
