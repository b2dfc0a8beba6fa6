"""On a standalone Spark cluster of three hosts, each with its own network and files.

Simulated by the tool in ``../shared/sparkhosts`` beside the repository, where that is.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import HEADER, NEEDS_SPARK, REPO

TOOL = REPO.parent / "shared" / "sparkhosts" / "sparkhosts.py"
pytestmark = [
    *NEEDS_SPARK,
    pytest.mark.skipif(
        not TOOL.exists(), reason=f"no {TOOL.name} beside the repository"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

JOB = """
spark = SparkSession.builder.getOrCreate()
began = time.monotonic()
context = sparkray.init(spark)
square = sparkray.remote(nested)
sparkray.get(square.remote(1))
first_s = time.monotonic() - began
nodes = executors()
tell(first_s=first_s, hosts=sorted(node["NodeManagerHostname"] for node in nodes))

def search(rows):
    sparkray.init()
    calls = [square.remote(x, 0.1) for x in range(20)]
    answers, places, pids = zip(*sparkray.get(calls))
    rows["total"] = sum(answers)
    rows["places"] = " ".join(places)
    return rows

frame = spark.range(2, numPartitions=2).groupBy("id")
found = frame.applyInPandas(search, "id long, total long, places string").toPandas()
tell(rows=found.to_dict("records"))
"""
MODULES = """
import importlib, pathlib, site, sys, zipfile
import beside  # lies where this script does, on this host only

def value(name):
    return importlib.import_module(name).VALUE

def python():
    installed = [path for path in sys.path if path.endswith("-packages")]
    return [sys.executable, sys.prefix, installed]

def add(spark, name):
    folder = pathlib.Path(added)
    (folder / f"{name}_file.py").write_text(f"VALUE = '{name} file'")
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as made:
        made.writestr(f"{name}_zip/__init__.py", f"VALUE = '{name} zip'")
    spark.sparkContext.addPyFile(str(folder / f"{name}_file.py"))
    spark.sparkContext.addPyFile(str(folder / f"{name}.zip"))

def on_each_node(function, *args):
    made = []
    for node in executors():
        place = sparkray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node["NodeID"], soft=False
        )
        made.append(function.options(scheduling_strategy=place).remote(*args))
    return sparkray.get(made)

import sparkray.util.scheduling_strategies
added = os.path.join(os.path.dirname(os.path.abspath(__file__)), "added")
os.mkdir(added)
spark = SparkSession.builder.getOrCreate()
add(spark, "early")
sparkray.init(spark)
value, python = sparkray.remote(value), sparkray.remote(python)
double = sparkray.remote(beside.double)
tell(beside=on_each_node(value, "beside"), doubled=on_each_node(double, 21))
tell(early=[on_each_node(value, f"early_{kind}") for kind in ("file", "zip")])
add(spark, "late")
tell(late=[on_each_node(value, f"late_{kind}") for kind in ("file", "zip")])

def look(rows):
    rows["beside"] = sparkray.get(value.remote("beside"))
    installed = [path for path in sys.path if path.endswith("-packages")]
    rows["python"] = json.dumps([sys.executable, sys.prefix, installed])
    return rows

frame = spark.range(2, numPartitions=2).groupBy("id")
found = frame.applyInPandas(look, "id long, beside string, python string").toPandas()
tell(udfs=list(found["beside"]), udf_pythons=[json.loads(p) for p in found["python"]])
tell(pythons=on_each_node(python))
"""
END = """
sparkray.shutdown()
tell(jobs=jobs(spark))
spark.stop()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("sparkhosts", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparkhosts"] = module
    spec.loader.exec_module(module)
    environment = {"PYTHONPATH": str(REPO), "SPARKRAY_SPARK_START_TIMEOUT_S": "240"}
    share = [f"{REPO}:{REPO}:ro"] if str(REPO).startswith("/tmp/") else []
    with module.SparkHosts(
        workers=2, python=sys.executable, env=environment, share=share
    ) as cluster:
        yield cluster


def test_each_host_gets_a_node_and_udfs_use_them_all(hosts: Any) -> None:
    done = hosts.run("driver", ["python", "-"], input=HEADER + JOB + END, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    told = {name: value for line in lines for name, value in json.loads(line).items()}
    assert len(set(told["hosts"])) == 2
    assert [row["total"] for row in told["rows"]] == [sum(x * x for x in range(20))] * 2
    used = {place for row in told["rows"] for place in row["places"].split()}
    assert len(used) == 2
    assert told["jobs"] == 0
    print(f"init to first task on a running Spark: {told['first_s']:.2f} s")
    wait_until_quiet(hosts, 10)


def test_modules_beside_the_driver_and_files_added_through_spark_are_imported_there(
    hosts: Any,
) -> None:
    folder = hosts.path("driver", "/tmp/job")
    folder.mkdir()
    (folder / "main.py").write_text(HEADER + MODULES + END)
    beside = "VALUE = 'beside'\ndef double(x):\n    return 2 * x\n"
    (folder / "beside.py").write_text(beside)
    done = hosts.run("driver", ["python", "/tmp/job/main.py"], timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    told = {name: value for line in lines for name, value in json.loads(line).items()}
    assert told["beside"] == ["beside"] * 2
    assert told["doubled"] == [42] * 2
    assert told["early"] == [["early file"] * 2, ["early zip"] * 2]
    assert told["late"] == [["late file"] * 2, ["late zip"] * 2]
    assert told["udfs"] == ["beside"] * 2
    assert told["pythons"] == told["udf_pythons"]
    wait_until_quiet(hosts, 10)


FRAMES = """
import numpy, pyarrow
from sparkray.exceptions import ObjectLostError
from sparkray.spark import from_dataframe, map_batches, to_dataframe
from sparkray.util.exchange import nodes_of

spark = SparkSession.builder.getOrCreate()
context = sparkray.init(spark)
tell(session=context.session_dir)
rows = 400_000
frame = spark.range(rows, numPartitions=4).selectExpr("id", "id * 0.5 AS half")

refs = from_dataframe(frame)
names = {node["NodeID"]: node["NodeManagerHostname"] for node in sparkray.nodes()}
places = [names[node] for ref in refs for node in nodes_of(ref)]
tell(places=sorted(set(places)), copies=len(places))

@sparkray.remote(scheduling_strategy="SPREAD")
def total(*tables):
    return sum(int(table["id"].to_numpy().sum()) for table in tables)

swapped = [total.remote(*refs) for _ in range(4)]
tell(sums=sparkray.get(swapped))
back = to_dataframe(refs[::-1], spark)
tell(back=back.groupBy().sum("id").collect()[0][0], rows=back.count())

class Model:
    def __init__(self):
        self.place = sparkray.get_runtime_context().get_node_id()

    def __call__(self, batch):
        return {"twice": batch["half"] * 4, "place": [self.place] * len(batch)}

made = map_batches(frame, Model, batch_size=10_000, concurrency=2)
tell(twice=int(made.groupBy().sum("twice").collect()[0][0]))
tell(models=sorted(names[row[0]] for row in made.select("place").distinct().collect()))

# the host of some tables loses its executor, and their node with it
before = {node["NodeID"] for node in executors()}
tell(lose=True)
sys.stdin.readline()
while before <= {node["NodeID"] for node in executors()}:
    time.sleep(0.05)
outcomes = []
for ref, place in zip(refs, places):
    try:
        outcomes.append([place, sparkray.get(ref, timeout=60).num_rows])
    except ObjectLostError as error:
        outcomes.append([place, str(error)])
tell(outcomes=outcomes)
again = map_batches(frame, Model, batch_size=10_000, concurrency=2)
tell(again=int(again.groupBy().sum("twice").collect()[0][0]))
conf = spark.sparkContext.getConf().getAll()
conf += [(name, spark.conf.get(name)) for name in ("sparkray.address", "sparkray.job")]
tell(conf=json.dumps(conf))
"""


def test_rows_go_between_hosts_and_only_a_lost_hosts_tables_are_lost(
    hosts: Any,
) -> None:
    driver = hosts.popen(
        "driver",
        ["python", "-c", HEADER + FRAMES + END],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told: dict[str, Any] = {}
    try:
        for line in driver.stdout:
            if not line.startswith("{"):
                continue
            told |= json.loads(line)
            if "session" in told and "token" not in told:
                file = hosts.path("driver", told["session"]) / "token"
                told["token"] = file.read_text()
            if told.pop("lose", False):
                assert told["token"] not in all_that_others_see(hosts)
                hosts.run("worker1", "pkill -9 -f CoarseGrainedExecutorBackend")
                driver.stdin.write("\n")
                driver.stdin.flush()
        assert driver.wait() == 0
    finally:
        driver.kill()
        driver.communicate()
    total = sum(range(400_000))
    lost = hosts.run("worker1", ["hostname"]).stdout.strip()
    kept = hosts.run("worker2", ["hostname"]).stdout.strip()
    assert told["places"] == sorted([lost, kept]) and told["copies"] == 4
    assert told["sums"] == [total] * 4
    assert told["back"] == total and told["rows"] == 400_000
    assert told["twice"] == told["again"] == 2 * total
    assert told["models"] == sorted([lost, kept])
    for place, outcome in told["outcomes"]:
        if place == kept:
            assert outcome == 100_000
        else:
            assert outcome == 100_000 or "another process has made it" in outcome
    assert told["token"] not in told["conf"]
    wait_until_quiet(hosts, 10)


def all_that_others_see(hosts: Any) -> str:
    """Return command lines and logs of all hosts."""
    look = (
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ';"
        " find /tmp/sparkray-0 -path '*/logs/*' -type f -exec cat {} +"
    )
    texts = [hosts.run(name, look).stdout for name in hosts.hosts]
    assert all("sparkray" in text for text in texts)
    texts += [
        log.read_text() for name in hosts.hosts for log in hosts.logs(name).values()
    ]
    return "\n".join(texts)


def test_hosts_are_clean_within_30_s_of_the_drivers_death(hosts: Any) -> None:
    die = "os.kill(os.getpid(), 9)\n"
    done = hosts.run("driver", ["python", "-"], input=HEADER + JOB + die, timeout=300)
    assert done.returncode != 0
    wait_until_quiet(hosts, 30)


LOSE_AN_EXECUTOR = """
spark = SparkSession.builder.getOrCreate()
sparkray.init(spark)
before = {node["NodeID"]: node["NodeManagerHostname"] for node in executors()}
soft = sparkray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
square = sparkray.remote(nested)
for node in before:  # waits until this host knows it, too
    sparkray.get(square.options(scheduling_strategy=soft(node, soft=False)).remote(1))
here = soft(sparkray.get_runtime_context().get_node_id(), soft=False)
safe = {"num_cpus": 0, "scheduling_strategy": here}
gate = sparkray.util.queue.Queue(actor_options=safe)
begun = sparkray.util.queue.Queue(actor_options=safe)

@sparkray.remote(max_retries=2)
def stay(x):
    begun.put((x, sparkray.get_runtime_context().get_node_id()))
    return gate.get(), sparkray.get_runtime_context().get_node_id()

calls = [
    stay.options(scheduling_strategy=soft(node, soft=True)).remote(x)
    for x, node in enumerate(before)
]
places = dict(begun.get() for _ in calls)
tell(places=[before[place] for place in places.values()], before=before)
sys.stdin.readline()                        # an executor is gone now
lost_s = time.monotonic()
x, again = begun.get()
tell(again_s=time.monotonic() - lost_s, again=again)
while len(now := executors()) != 2 or {n["NodeID"] for n in now} == set(before):
    time.sleep(0.05)
tell(replaced_s=time.monotonic() - lost_s)
gate.put_nowait_batch([0, 1])
tell(answers=sorted(answer for answer, _ in sparkray.get(calls)))
"""


def test_a_killed_executor_costs_a_retry_and_its_node_is_replaced(hosts: Any) -> None:
    imports = "import sparkray.util.queue, sparkray.util.scheduling_strategies\n"
    driver = hosts.popen(
        "driver",
        ["python", "-c", HEADER + imports + LOSE_AN_EXECUTOR + END],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = json.loads(driver.stdout.readline())
        assert len(set(told["places"])) == 2
        hosts.run("worker1", "pkill -9 -f CoarseGrainedExecutorBackend")
        driver.stdin.write("\n")
        driver.stdin.flush()
        told = {}
        for line in driver.stdout:  # one by one: where it stops is where it hangs
            if line.startswith("{"):
                told |= json.loads(line)
                print(line)
        assert driver.wait() == 0
    finally:
        driver.kill()
        driver.communicate()
    print(f"executor killed: task again after {told['again_s']:.1f} s, ", end="")
    print(f"node replaced after {told['replaced_s']:.1f} s")
    assert told["answers"] == [0, 1] and told["jobs"] == 0
    wait_until_quiet(hosts, 10)


@pytest.mark.long
def test_the_loss_of_the_drivers_whole_host_leaves_nothing_on_the_others(
    hosts: Any,
) -> None:
    """The last test of this cluster: its Spark master is lost with that host."""
    driver = hosts.popen(
        "driver",
        ["python", "-c", HEADER + JOB + "time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for line in driver.stdout:
            if line.startswith("{") and "rows" in json.loads(line):
                break
        began = time.monotonic()
        hosts.kill("driver")
        wait_until_quiet(hosts, 120, hosts.workers)
        print(f"driver's host lost: all quiet after {time.monotonic() - began:.1f} s")
    finally:
        driver.kill()
        driver.communicate()


def wait_until_quiet(hosts: Any, timeout_s: float, names: Any = None) -> None:
    """Wait until no host has a process or file of sparkray's, or fail with what is."""
    look = (
        "pgrep -af 'sparkray[.]';"
        " ls -d /dev/shm/sparkray-* /tmp/sparkray-0/* 2>/dev/null; true"
    )
    deadline = time.monotonic() + timeout_s
    left = True
    while left:
        found = {name: hosts.run(name, look).stdout for name in names or hosts.hosts}
        left = any(text.strip() for text in found.values())
        assert not left or time.monotonic() < deadline, found
        time.sleep(0.3)
