"""GPUs that Spark hands out: a discovery script names two, tasks get one each."""

from collections.abc import Callable

from .conftest import NEEDS_SPARK, Driver

pytestmark = NEEDS_SPARK
Run = Callable[[str], Driver]

START = """
    from pathlib import Path

    script = Path(os.environ["TEST_FOLDER"]) / "gpus.sh"
    found = json.dumps({"name": "gpu", "addresses": ["4", "7"]})
    script.write_text(f"#!/bin/sh\\necho '{found}'\\n")
    script.chmod(0o755)

    def start_with_gpus(task_gpus):
        return start(
            "local-cluster[1,2,1024]",
            spark_worker_resource_gpu_amount="2",
            spark_worker_resource_gpu_discoveryScript=str(script),
            spark_executor_resource_gpu_amount="2",
            spark_executor_resource_gpu_discoveryScript=str(script),
            spark_task_resource_gpu_amount=str(task_gpus),
        )

    @sparkray.remote(num_gpus=1)
    def hold(other):
        begun = Path(os.environ["TEST_FOLDER"])
        (begun / os.environ["CUDA_VISIBLE_DEVICES"]).touch()
        deadline = time.monotonic() + 60
        while not (begun / other).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return os.environ["CUDA_VISIBLE_DEVICES"], sparkray.get_gpu_ids()

    @sparkray.remote
    def without():
        return os.environ["CUDA_VISIBLE_DEVICES"]
"""


def test_a_node_has_the_devices_of_its_spark_task_and_udfs_run_beside_it(
    run_driver: Run,
) -> None:
    told = run_driver(
        START
        + """
    spark = start_with_gpus(2)  # a Spark task takes both: no slot for the node to hold
    sparkray.init(spark)
    (node,) = executors()
    others = [n for n in sparkray.nodes() if n["NodeID"] != node["NodeID"]]
    tell(gpus=node["Resources"]["GPU"], other=others[0]["Resources"].get("GPU"))
    both = hold.options(num_gpus=2)
    tell(both=sparkray.get(both.remote("4,7"), timeout=60))
    found = sparkray.get([hold.remote(other) for other in ("7", "4")], timeout=60)
    tell(apart=sorted(found))
    tell(without=sparkray.get(without.remote(), timeout=60))
    tell(action=action(spark, 2))
    """
    ).results()
    facts = {name: value for line in told for name, value in line.items()}
    assert facts["gpus"] == 2 and facts["other"] is None
    assert facts["both"] == ["4,7", [4, 7]]
    assert {visible for visible, _ in facts["apart"]} <= {"4", "7"}
    assert facts["without"] == "" and facts["action"] == 2


def test_a_node_that_holds_a_slot_leaves_spark_the_other_device(
    run_driver: Run,
) -> None:
    told = run_driver(
        START
        + """
    spark = start_with_gpus(1)
    sparkray.init(spark)
    (node,) = executors()
    visible, ids = sparkray.get(hold.remote(""), timeout=60)
    tell(gpus=node["Resources"]["GPU"], visible=visible, ids=ids)

    def addresses(batches):
        import pandas as pd
        from pyspark import TaskContext

        for _ in batches:
            pass
        found = TaskContext.get().resources()["gpu"].addresses
        yield pd.DataFrame({"addresses": [",".join(found)]})

    frame = spark.range(1, numPartitions=1).mapInPandas(addresses, "addresses string")
    tell(udf=frame.first()["addresses"])
    """
    ).results()
    facts = {name: value for line in told for name, value in line.items()}
    assert facts["gpus"] == 1
    assert {facts["visible"], facts["udf"]} == {"4", "7"}
    assert facts["ids"] == [int(facts["visible"])]
