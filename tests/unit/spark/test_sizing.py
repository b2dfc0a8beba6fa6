import pytest

from sparkray.spark import sizing
from sparkray.spark.sizing import ExecutorCommand, Master

GIB = 1 << 30


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("local", Master(1, 1)),
        ("local[3]", Master(1, 3)),
        ("local[*]", Master(1, 8)),
        ("local[2,4]", Master(1, 2)),
        ("local-cluster[2,1,1024]", Master(2, 1)),
        ("local-cluster[ 3 , 4 , 2048 ]", Master(3, 4)),
        ("spark://driver:7077", Master(None, None)),
        ("yarn", Master(None, None)),
        ("k8s://https://host:443", Master(None, None)),
        ("", Master(None, None)),
    ],
)
def test_a_masters_address_tells_what_it_can(address: str, expected: Master) -> None:
    assert sizing.read_master(address, host_cpus=8) == expected


def test_an_executor_is_known_by_its_command_line() -> None:
    text = (
        "java -cp jars -Xmx1g org.apache.spark.executor.CoarseGrainedExecutorBackend"
        " --driver-url spark://driver:1 --executor-id 7 --hostname 10.0.0.3 --cores 4"
        " --app-id app-1 --resourceProfileId 0"
    )
    assert sizing.read_executor_command(text.split()) == ExecutorCommand(
        executor_id="7", host="10.0.0.3", cores=4, app_id="app-1"
    )


def test_a_java_process_that_is_no_executor_is_the_driver() -> None:
    command = ["java", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    assert sizing.read_executor_command(command) == ExecutorCommand()
    assert sizing.read_executor_command([]).executor_id == "driver"


def test_by_default_every_executor_carries_a_node_later_ones_too() -> None:
    count = sizing.count_nodes(None, None, None)
    assert [count.wanted(executors) for executors in (0, 1, 5)] == [1, 1, 5]


def test_a_number_of_nodes_is_neither_exceeded_nor_undercut() -> None:
    count = sizing.count_nodes(3, None, None)
    assert [count.wanted(executors) for executors in (0, 3, 5)] == [3, 3, 3]


def test_a_range_of_nodes_follows_the_executors_within_it() -> None:
    count = sizing.count_nodes(None, 2, 4)
    assert [count.wanted(executors) for executors in (1, 3, 9)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((0, None, None), ValueError, "num_nodes must be 1 or more, not 0"),
        ((None, -1, None), ValueError, "min_nodes must be 1 or more"),
        ((None, None, 1.5), TypeError, "max_nodes must be an integer"),
        ((True, None, None), TypeError, "num_nodes must be an integer"),
        ((2, 1, None), ValueError, "not both"),
        ((None, 3, 2), ValueError, "min_nodes=3 is more than max_nodes=2"),
    ],
)
def test_counts_that_make_no_sense_are_refused(
    given: tuple[int | None, int | None, int | None],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        sizing.count_nodes(*given)


def test_too_few_executors_are_told_with_both_numbers_and_the_setting() -> None:
    fixed = sizing.too_few(5, 2, 2, dynamic=False)
    assert "5 nodes" in fixed and "2 executors" in fixed
    assert "spark.executor.instances" in fixed
    assert "maxExecutors" in sizing.too_few(5, 2, 2, dynamic=True)


def test_executors_without_a_free_slot_are_told_apart() -> None:
    text = sizing.too_few(2, 2, 1, dynamic=False)
    assert "only 1 came up" in text and "occupy all slots" in text


@pytest.mark.parametrize(
    ("cores", "task_cpus", "slots"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (1, 2, 1)]
)
def test_an_executor_has_a_slot_for_each_task_that_fits(
    cores: int, task_cpus: int, slots: int
) -> None:
    assert sizing.slots_of(cores, task_cpus) == slots


@pytest.mark.parametrize(
    ("gpus", "task_gpus", "slots"),
    [(2, 1, 2), (2, 2, 1), (1, 0.25, 4), (8, 1, 4), (0, 1, 4), (2, 0, 4), (1, 2, 1)],
)
def test_gpus_can_leave_an_executor_fewer_slots_than_its_cores(
    gpus: float, task_gpus: float, slots: int
) -> None:
    assert sizing.slots_of(4, 1, gpus, task_gpus) == slots


def test_by_default_a_node_holds_a_slot_where_another_is_left() -> None:
    assert sizing.holds_slot(None, 2)
    assert not sizing.holds_slot(None, 1)
    assert sizing.holds_slot(True, 1)
    assert not sizing.holds_slot(False, 8)


def test_taking_the_only_slot_is_warned_of() -> None:
    assert "will wait" in sizing.holding_warning(True, 1, dynamic=False)
    assert sizing.holding_warning(True, 2, dynamic=False) == ""
    assert sizing.holding_warning(True, 1, dynamic=True) == ""  # Spark adds executors
    assert sizing.holding_warning(None, 1, dynamic=False) == ""


def test_executors_that_may_be_taken_away_are_warned_of() -> None:
    assert "hold_slots=True" in sizing.holding_warning(None, 1, dynamic=True)
    assert sizing.holding_warning(None, 4, dynamic=True) == ""


def test_memory_is_shared_as_the_processors_are() -> None:
    share = sizing.share_of_host(2, 8, 64 * GIB, 60 * GIB)
    assert share.memory_bytes + share.object_store_bytes == 16 * GIB
    assert share.object_store_bytes == int(16 * GIB * sizing.OBJECT_STORE_FRACTION)


def test_a_small_dev_shm_limits_the_object_store() -> None:
    share = sizing.share_of_host(1, 2, 64 * GIB, 2 * GIB)
    assert share.object_store_bytes == int(GIB * sizing.SHM_FRACTION)


def test_an_executor_never_gets_more_than_its_host() -> None:
    share = sizing.share_of_host(16, 4, 8 * GIB, 0)
    assert share.memory_bytes + share.object_store_bytes == 8 * GIB


@pytest.mark.parametrize(
    ("master", "dynamic", "dynamic_max", "cores_max", "executor_cores", "most"),
    [
        ("local-cluster[2,1,512]", False, None, None, 1, (2, "local-cluster[2,1,512]")),
        ("local[4]", False, None, 1, 2, (1, "local[4]")),
        ("yarn", True, 5, None, None, (5, "maxExecutors")),
        ("yarn", False, 5, None, None, None),
        ("yarn", False, None, 8, 4, None),
        ("k8s://https://host:443", True, 9, 8, 4, (9, "maxExecutors")),
        ("spark://host:7077", False, None, 8, 4, (2, "spark.cores.max=8")),
        ("spark://host:7077", True, 1, 8, 4, (1, "maxExecutors")),
        ("spark://host:7077", False, None, 8, None, None),
    ],
)
def test_how_many_executors_there_can_ever_be_is_known_where_a_setting_limits_them(
    master: str,
    dynamic: bool,
    dynamic_max: int | None,
    cores_max: int | None,
    executor_cores: int | None,
    most: tuple[int, str] | None,
) -> None:
    limit = sizing.most_executors(
        master,
        sizing.read_master(master, host_cpus=8).executors,
        dynamic=dynamic,
        dynamic_max=dynamic_max,
        cores_max=cores_max,
        executor_cores=executor_cores,
    )
    if most is None:
        assert limit is None
    else:
        assert limit is not None and limit.executors == most[0]
        assert most[1] in limit.setting


def test_more_nodes_than_settings_allow_are_refused_with_that_setting() -> None:
    limit = sizing.Limit(1, "spark.master=local[4]")
    assert sizing.too_few_allowed(2, limit) == (
        "asked for 2 nodes, but Spark's settings allow 1 executor to carry one each"
        " (spark.master=local[4]): ask for at most 1, or change that setting"
    )


def test_settings_that_allow_no_executor_are_named_as_what_to_change() -> None:
    limit = sizing.most_executors(
        "spark://host:7077",
        None,
        dynamic=False,
        dynamic_max=None,
        cores_max=2,
        executor_cores=4,
    )
    assert limit is not None
    assert sizing.too_few_allowed(1, limit) == (
        "asked for 1 node, but Spark's settings allow 0 executors to carry one each"
        " (spark.cores.max=2 with spark.executor.cores=4): change that setting"
    )


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        (sizing.Occupancy(2, 2, 2), "Spark has 2 executors, and 0 of 2 slots are free"),
        (sizing.Occupancy(1, 1, 4), "Spark has 1 executor, and 3 of 4 slots are free"),
        (sizing.Occupancy(2, 3), "Spark has 2 executors and runs 3 tasks"),
        (sizing.Occupancy(2, 1), "Spark has 2 executors and runs 1 task"),
        (sizing.Occupancy(0), "Spark has 0 executors"),
    ],
)
def test_a_start_says_what_it_waits_for(spark: sizing.Occupancy, said: str) -> None:
    text = sizing.waiting_for(3, 1, spark)
    assert text == f"1 of 3 nodes on Spark executors are up; {said}"


def test_the_nodes_of_one_host_have_no_more_memory_together_than_it_has() -> None:
    host = 10 * GIB
    for cores, executors, cpus in [(1, 2, 2), (4, 3, 4), (2, 1, 8), (16, 1, 4)]:
        share = sizing.share_of_host(
            cores,
            cpus,
            host,
            host,
            neighbours=cores * (executors - 1),
            with_head=True,
        )
        nodes = executors * (share.memory_bytes + share.object_store_bytes)
        head = sizing.OBJECT_STORE_FRACTION * host
        assert nodes + head + sizing.memory_of_head(0, cpus, host) <= host


def test_the_drivers_host_lends_memory_as_it_lends_cpus() -> None:
    assert sizing.memory_of_head(0, 4, 10 * GIB) == 0
    assert sizing.memory_of_head(1, 4, 10 * GIB) == int(10 * GIB * 0.7 / 4)
    assert sizing.memory_of_head(9, 4, 10 * GIB) == int(10 * GIB * 0.7)


def test_cores_are_those_of_executors_only() -> None:
    backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
    yarn = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
    assert sizing.cores_of_executor(["java", backend, "--cores", "4"]) == 4
    assert sizing.cores_of_executor(["java", yarn, "--cores", "2"]) == 2
    assert sizing.cores_of_executor(["java", backend]) == 1
    assert sizing.cores_of_executor(["java", "Server", "--cores", "4"]) == 0


def test_tasks_wait_longer_for_nodes_on_spark_unless_the_user_says_otherwise() -> None:
    name = "SPARKRAY_INFEASIBLE_TIMEOUT_S"
    assert float(sizing.default_settings({})[name]) > 15
    assert sizing.default_settings({name: "5"}) == {}
