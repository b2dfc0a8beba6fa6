"""On ``local-cluster[2,1,1024]``: two executors of one core each, real processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import (
    HEADER,
    NEEDS_SPARK,
    Console,
    Driver,
    leftovers,
    wait_until_gone,
)

pytestmark = NEEDS_SPARK
Run = Callable[[str], Driver]


def test_udfs_run_nested_tasks_all_over_the_cluster(console: Console) -> None:
    """Start, use, stop, start."""
    results = console.run(
        """
        spark = start()
        context = sparkray.init(spark)
        square = sparkray.remote(nested)
        tell(first=sparkray.get(square.remote(3))[0], nodes=len(executors()))
        tell(same=sparkray.init(spark) is context)

        tell(action=action(spark, 2))

        shared = sparkray.put(list(range(1000)))

        def search(rows):
            calls = [square.remote(x, 0.05) for x in range(20)]
            answers, places, pids = zip(*sparkray.get(calls))
            udf_pid = os.getpid()
            rows["total"] = sum(answers) + sum(sparkray.get(shared))
            rows["places"] = " ".join(places)
            rows["apart"] = udf_pid not in pids
            rows["job"] = sparkray.get_runtime_context().get_job_id()
            rows["own"] = sparkray.get_runtime_context().get_node_id()
            return rows

        schema = "id long, total long, places string, apart boolean"
        schema += ", job string, own string"
        frame = spark.range(2, numPartitions=2).groupBy("id")
        found = frame.applyInPandas(search, schema).toPandas()
        tell(rows=found.to_dict("records"), job=context.job_id)
        frame = spark.range(1, numPartitions=1).groupBy("id")
        found = frame.applyInPandas(search, schema).toPandas()
        tell(alone=found["places"][0].split())
        tell(executors=[node["NodeID"] for node in executors()])

        sparkray.shutdown()
        tell(jobs=jobs(spark))

        def lonely(rows):
            try:
                sparkray.get(sparkray.remote(nested).remote(1))
                rows["said"] = "joined"
            except ConnectionError as error:
                rows["said"] = str(error)
            return rows

        frame = spark.range(1, numPartitions=1).groupBy("id")
        found = frame.applyInPandas(lonely, "id long, said string").toPandas()
        tell(said=found["said"][0])

        began = time.monotonic()
        with sparkray.init(spark):
            tell(again=sparkray.get(square.remote(4))[0], s=time.monotonic() - began)
            found = frame.applyInPandas(lonely, "id long, said string").toPandas()
            tell(said_again=found["said"][0])
        """
    )
    assert results["first"] == 9 and results["nodes"] == 2
    assert results["same"]
    assert results["action"] == 2
    for row in results["rows"]:
        assert row["total"] == sum(x * x for x in range(20)) + sum(range(1000))
        assert row["apart"]
        assert row["job"] == results["job"]
        assert row["own"] in results["executors"]
    assert set(results["alone"]) == set(results["executors"])
    assert results["jobs"] == 0
    assert "sparkray.init(spark)" in results["said"]
    assert results["again"] == 16
    assert results["said_again"] == "joined"
    print(f"init to first task on a running Spark: {results['s']:.2f} s")


@pytest.mark.long
def test_two_executors_of_one_host_get_nodes_of_their_own_in_ten_starts_of_ten(
    console: Console,
) -> None:
    told = console.run(
        """
        spark = start()
        starts = []
        for _ in range(10):
            with sparkray.init(spark):
                nodes = executors()
                names = "NodeManagerPort", "NodeID"
                starts.append([len({n[name] for n in nodes}) for name in names])
        tell(starts=starts)
        """
    )
    assert told["starts"] == [[2, 2]] * 10


def test_more_nodes_than_executors_raise_an_error_at_once(console: Console) -> None:
    told = console.run(
        """
        from sparkray.spark import start_cluster
        spark = start()
        began = time.monotonic()
        try:
            start_cluster(spark, num_nodes=5)
        except sparkray.exceptions.SparkrayError as error:
            tell(said=str(error), s=time.monotonic() - began)
        """
    )
    assert "5 nodes" in told["said"] and "2 executors" in told["said"]
    assert told["s"] < 30


def test_taking_every_slot_is_warned_of_and_given_back_at_shutdown(
    console: Console,
) -> None:
    results = console.run(
        """
        from sparkray.spark import start_cluster
        spark = start()
        start_cluster(spark, hold_slots=True)
        tell(held=jobs(spark), nodes=len(executors()))
        sparkray.shutdown()
        tell(left=jobs(spark), action=action(spark, 2))
        """
    )
    assert results == {"held": 2, "nodes": 2, "left": 0, "action": 2}
    assert "takes the only slot" in console.errors()


def test_nodes_are_of_the_size_that_was_asked_for(console: Console) -> None:
    told = console.run(
        """
        from sparkray.spark import start_cluster
        spark = start()
        start_cluster(
            spark,
            cpus_per_node=3,
            memory=10**9,
            object_store_memory=2 * 10**8,
            resources={"licence": 2},
            driver_cpus=1,
            worker_port_min=21000,
            worker_port_max=21100,
        )
        names = "CPU", "memory", "object_store_memory", "licence"
        tell(nodes=[[n["Resources"].get(x) for x in names] for n in executors()])
        tell(cpus=sparkray.cluster_resources()["CPU"])

        def ports():
            import psutil
            found = psutil.Process().net_connections()
            return sorted({c.laddr.port for c in found if c.status == "LISTEN"})

        where = {"num_cpus": 0, "resources": {"licence": 1}}
        tell(ports=sparkray.get(sparkray.remote(**where)(ports).remote()))
        """
    )
    assert told["nodes"] == [[3, 10**9, 2 * 10**8, 2]] * 2
    assert told["cpus"] == 7
    assert told["ports"] and all(21000 <= port <= 21100 for port in told["ports"])


DETACHED = """
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from sparkray.spark import start_cluster

gateway = launch_gateway()  # to the process that the variables name
running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
java = gateway.jvm.JavaSparkContext(running)
context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
start_cluster(SparkSession(context), hold_slots=True)
refs = [sparkray.remote(nested).remote(x, 60) for x in range(4)]
tell(nodes=len(executors()), session=sparkray.init().session_dir)
time.sleep(600)
"""


def test_a_notebook_that_is_detached_gives_all_slots_back_though_spark_goes_on(
    console: Console, folder: Path
) -> None:
    """Its Python process is killed, the Java process of Spark is another's."""
    (folder / "notebook.py").write_text(HEADER + DETACHED)
    told = console.run(
        f"""
        import subprocess
        spark = start()
        gateway = spark.sparkContext._gateway.gateway_parameters
        notebook = subprocess.Popen(
            [sys.executable, {str(folder / "notebook.py")!r}],
            env={{
                **os.environ,
                "PYSPARK_GATEWAY_PORT": str(gateway.port),
                "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
            }},
            stdout=subprocess.PIPE,
            text=True,
        )
        said = {{}}
        while "nodes" not in said:
            line = notebook.stdout.readline()
            assert line, notebook.wait()
            said = json.loads(line) if line.startswith("{{") else {{}}
        held = jobs(spark)
        notebook.kill()
        notebook.communicate()
        began = time.monotonic()
        while jobs(spark):
            assert time.monotonic() < began + 60
            time.sleep(0.05)
        tell(nodes=said["nodes"], held=held, action=action(spark, 2))
        """
    )
    assert told == {"nodes": 2, "held": 2, "action": 2}
    wait_until_gone(console.folder, 30)


def test_nodes_that_hold_a_slot_leave_one_for_spark_and_a_stopped_session_is_an_error(
    run_driver: Run, folder: Path
) -> None:
    told = run_driver(
        """
        spark = start("local-cluster[2,2,1024]")
        sparkray.init(spark)
        import psutil
        lent = [
            sum(node["Resources"].get(name, 0) for node in sparkray.nodes())
            for name in ("memory", "object_store_memory")
        ]
        tell(fits=sum(lent) <= psutil.virtual_memory().total)
        tell(held=jobs(spark), cpus=sparkray.cluster_resources()["CPU"])
        tell(action=action(spark, 4))
        sparkray.shutdown()
        spark.stop()
        from sparkray.spark import start_cluster
        for number, stopped in enumerate((sparkray.init, start_cluster)):
            try:
                stopped(spark)
            except ValueError as error:
                tell(**{f"stopped{number}": str(error)[:29]})
        """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    stopped = "this SparkSession is stopped:"
    assert (results.pop("stopped0"), results.pop("stopped1")) == (stopped, stopped)
    assert results == {"fits": True, "held": 2, "cpus": 4.0, "action": 4}
    wait_until_gone(folder, 10)


def test_nothing_is_left_when_the_driver_is_killed(
    run_driver: Run, folder: Path
) -> None:
    driver = run_driver(
        """
        spark = start()
        context = sparkray.init(spark)
        square = sparkray.remote(nested)
        sparkray.get([square.remote(x, 0.1) for x in range(8)])
        tell(nodes=len(executors()), cluster=os.path.basename(context.session_dir))
        refs = [square.remote(x, 60) for x in range(8)]
        time.sleep(600)
        """
    )
    told = driver.next_result()
    assert told["nodes"] == 2
    (folder / "clusters").write_text(told["cluster"].partition("-")[0])
    assert leftovers(folder)
    driver.kill()
    wait_until_gone(folder, 30)


def test_an_executor_that_spark_starts_anew_gets_a_node(console: Console) -> None:
    results = console.run(
        """
        import psutil
        spark = start()
        sparkray.init(spark)
        before = {node["NodeID"] for node in executors()}

        def victim(batches):
            from sparkray.spark.discovery import executor_process
            executor_process().kill()
            yield from batches

        try:
            spark.range(1, numPartitions=1).mapInArrow(victim, "id long").collect()
        except Exception:
            pass  # with its executor
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            now = {node["NodeID"] for node in executors()}
            if len(now) == 2 and now != before:
                break
            time.sleep(0.2)
        tell(new=len(now - before), now=len(now))
        square = sparkray.remote(nested)
        tell(square=sparkray.get(square.remote(5))[0])
        """
    )
    assert results["new"] >= 1 and results["now"] == 2
    assert results["square"] == 25
