"""A cluster that follows the demand, on ``local-cluster`` with dynamic allocation.

Spark starts with one executor and may have two, of two cores each.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import NEEDS_SPARK, Driver, sparkray_processes, wait_until_gone

pytestmark = NEEDS_SPARK
Run = Callable[[str], Driver]

#: Spark brings executors up, and takes them back, within seconds.
START = """
    from sparkray.spark import start_cluster, stop_cluster

    def start_elastic():
        allocation = {
            "enabled": "true",
            "shuffleTracking.enabled": "true",
            "shuffleTracking.timeout": "2s",  # of the stage that runs meanwhile
            "initialExecutors": "1",
            "minExecutors": "0",
            "maxExecutors": "2",
            "executorIdleTimeout": "2s",
            "schedulerBacklogTimeout": "1s",
        }
        names = {
            "spark_dynamicAllocation_" + name.replace(".", "_"): value
            for name, value in allocation.items()
        }
        return start(
            "local-cluster[2,2,1024]",
            spark_executor_cores="2",
            spark_executor_memory="512m",
            **names,
        )

    def until(condition, timeout_s=300):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError("did not come to be in time")
            time.sleep(0.05)
        return found

    def spark_executors(spark):
        tracker = spark.sparkContext._jsc.sc().statusTracker()
        return len(tracker.getExecutorInfos()) - 1

    gates = os.path.join(os.environ["TEST_FOLDER"], "gate-")

    @sparkray.remote
    def work(x, gate=None):
        if gate:
            open(f"{gates}{gate}-begun-{x}", "w").close()
            while not os.path.exists(gates + gate):
                time.sleep(0.02)
        return x * x, sparkray.get_runtime_context().get_node_id()

    def begun(gate):
        folder, start = os.path.split(f"{gates}{gate}-begun-")
        return sum(name.startswith(start) for name in os.listdir(folder))

    def open_gate(gate):
        open(gates + gate, "w").close()
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nodes_come_with_the_demand_and_go_without_it(
    run_driver: Run, folder: Path
) -> None:
    told = run_driver(
        START
        + """
    spark = start_elastic()
    start_cluster(spark, 1, 2, idle_timeout_s=2)
    first = executors()
    tell(at_first=len(first), resources=sorted(first[0]["Resources"]))
    store = spark.sparkContext._jsc.sc().statusStore()
    tracker = spark.sparkContext.statusTracker()
    (job_id,) = tracker.getActiveJobsIds()
    tell(text=store.job(job_id).description().get())
    tell(group=store.job(job_id).jobGroup().get())

    # more is asked for than one node has, and Spark's own stage runs beside it
    refs = [work.remote(x, "grow") for x in range(4)]
    until(lambda: begun("grow") == 4)
    tell(grown=len(executors()), executors=spark_executors(spark))
    tell(stage=action(spark, 6))
    open_gate("grow")
    answers, places = zip(*sparkray.get(refs))
    tell(answers=answers, places=len(set(places)))

    # an object that only one node has keeps that node, the other leaves
    kept = sparkray.remote(lambda: bytes(1 << 20)).remote()
    sparkray.wait([kept])
    del refs
    until(lambda: len(executors()) == 1)
    tell(kept=len(sparkray.get(kept)))
    until(lambda: spark_executors(spark) == 1)
    tell(left=[n["DeathReason"] for n in sparkray.nodes() if not n["Alive"]])
    tell(jobs=jobs(spark))

    began = time.monotonic()
    stop_cluster()
    tell(stop_s=time.monotonic() - began, jobs_after=jobs(spark))
    tell(all_slots=action(spark, 6))
    spark.stop()
    """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    assert results["at_first"] == 1
    assert "sparkray node" in results["text"]
    assert results["group"].startswith("sparkray-")
    assert results["grown"] == 2 and results["executors"] == 2
    assert results["stage"] == 6
    assert results["answers"] == [x * x for x in range(4)] and results["places"] == 2
    assert results["kept"] == 1 << 20
    assert results["left"] and all("needed it" in text for text in results["left"])
    assert results["jobs"] == 1
    assert results["jobs_after"] == 0 and results["all_slots"] == 6
    wait_until_gone(folder, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_batches_of_a_class_bring_nodes_up_without_being_told_how_many(
    run_driver: Run, folder: Path
) -> None:
    told = run_driver(
        START
        + """
    from sparkray.spark import map_batches
    spark = start_elastic()
    start_cluster(spark, 1, 2, idle_timeout_s=2)

    class Model:
        def __init__(self):
            self.place = sparkray.get_runtime_context().get_node_id()

        def __call__(self, batch):
            while not os.path.exists(gates + "both"):
                open(gates + "both-begun-" + self.place, "w").close()
                if begun("both") == 2:
                    open_gate("both")
                time.sleep(0.02)
            return {"x": batch["id"] * 2, "place": [self.place] * len(batch)}

    made = map_batches(spark.range(1000, numPartitions=2), Model, batch_size=50)
    tell(total=made.groupBy().sum("x").collect()[0][0])
    tell(places=made.select("place").distinct().count())
    stop_cluster()
    spark.stop()
    """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    assert results == {"total": 2 * sum(range(1000)), "places": 2}
    wait_until_gone(folder, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_executor_is_replaced_and_its_tasks_run_again(
    run_driver: Run, folder: Path
) -> None:
    told = run_driver(
        START
        + """
    import psutil

    spark = start_elastic()
    start_cluster(spark, 2, 2, idle_timeout_s=2)
    before = {node["NodeID"]: node for node in executors()}
    refs = [work.remote(x, "kill") for x in range(4)]
    until(lambda: begun("kill") == 4)

    victim = min(before)
    name = before[victim]["Labels"]["spark.executor"]
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            mine = process.environ().get("TEST_FOLDER") == os.environ["TEST_FOLDER"]
        except psutil.Error:
            continue
        if mine and f"--executor-id {name} " in " ".join(command):
            process.kill()
    began = time.monotonic()
    until(lambda: victim not in {node["NodeID"] for node in executors()})
    tell(gone_s=time.monotonic() - began)
    until(lambda: len(executors()) == 2)
    tell(replaced_s=time.monotonic() - began)
    tell(new=len({node["NodeID"] for node in executors()} - before.keys()))
    open_gate("kill")
    answers, places = zip(*sparkray.get(refs))
    tell(answers=answers, on_the_victim=places.count(victim))
    stop_cluster()
    tell(jobs_after=jobs(spark))
    spark.stop()
    """
    ).results()
    results = {name: value for line in told for name, value in line.items()}
    print(f"node gone after {results['gone_s']:.1f} s,", end=" ")
    print(f"replaced after {results['replaced_s']:.1f} s")
    assert results["new"] == 1
    assert results["answers"] == [x * x for x in range(4)]
    assert results["on_the_victim"] == 0
    assert results["jobs_after"] == 0
    wait_until_gone(folder, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_left_of_a_driver_that_is_killed_while_it_waits_for_nodes(
    run_driver: Run, folder: Path
) -> None:
    driver = run_driver(
        START
        + """
    spark = start_elastic()
    tell(started=True)
    start_cluster(spark, 2, 2)
    """
    )
    assert driver.next_result()["started"]
    while not any("sparkray.spark.guard" in it for it in sparkray_processes(folder)):
        assert driver.process.poll() is None, driver.errors()
        time.sleep(0.02)
    driver.kill()
    wait_until_gone(folder, 30)
