"""A cluster that the init script brings up, the workers before the driver."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import (
    HAS_SPARK,
    INIT_SCRIPT,
    NEEDS_HOSTS,
    REPO,
    TOKEN,
    Hosts,
    hosts_up,
    make_wheel,
)

pytestmark = NEEDS_HOSTS


@pytest.fixture(scope="module")
def hosts(wheel: Path) -> Iterator[Hosts]:
    began = time.monotonic()
    with hosts_up(
        wheel,
        INIT_SCRIPT,
        env={"SPARKRAY_TOKEN": TOKEN, "SPARKRAY_OBJECT_STORE_MEMORY": "200000000"},
        order="workers-first",
        spark=HAS_SPARK,
    ) as cluster:
        with cluster.notebook(FIRST_TASK) as notebook:
            notebook.next()
            took_s = time.monotonic() - began
            print(f"hosts up to first task: {took_s:.1f} s, {cluster.tool.timings}")
            notebook.end()
        yield cluster


FIRST_TASK = """
sparkray.init()
tell(host=sparkray.get(sparkray.remote(host).remote()))
"""

ALL_HOSTS = """
context = sparkray.init()
nodes = await_nodes(3)
places = [place_of(node) for node in nodes]
total = sparkray.cluster_resources()
tell(places=sorted(places), cpus=total["CPU"], store=total["object_store_memory"])
tell(address=context.address, file=sparkray.__file__)
"""


def test_a_notebook_finds_the_cluster_and_uses_all_hosts(hosts: Hosts) -> None:
    with hosts.notebook(ALL_HOSTS) as notebook:
        told = notebook.next()
        assert told["places"] == sorted(node_names(hosts))
        assert told["cpus"] == 6 and told["store"] == 3 * 200_000_000
        told = notebook.next()
        assert told["address"] == f"{hosts.tool.ip('driver')}:9339"
        assert "site-packages" in told["file"]
        errors = notebook.end()
    assert "joined cluster" in errors and "ignored" not in errors


def node_names(hosts: Hosts) -> list[str]:
    return [hosts.run(name, ["hostname"]).stdout.strip() for name in hosts.names]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(not HAS_SPARK, reason="Spark needs pyspark and a Java runtime")
def test_the_notebook_about_it_runs_and_its_udfs_join_on_their_own_hosts(
    hosts: Hosts,
) -> None:
    notebook = REPO / "notebooks" / "02_from_an_init_script_cluster.ipynb"
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = hosts.run("driver", ["python", "-"], input="\n".join(code), timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "3 nodes, 6 CPUs" in done.stdout
    assert "shops done: [0, 1, 2, 3, 4, 5]" in done.stdout
    assert "it has a namespace of its own" in done.stdout
    assert done.stderr.count("joined cluster") == 1, done.stderr


def test_running_the_script_again_changes_nothing(hosts: Hosts) -> None:
    before = {name: hosts.agents(name) for name in hosts.names}
    (hosts.tool.path("driver", "/root") / "token").write_text(TOKEN)
    file = {"SPARKRAY_TOKEN": "", "SPARKRAY_TOKEN_FILE": "token"}
    again = {"driver": file, "worker1": {}}
    script = f"bash /databricks/init_scripts/00_{INIT_SCRIPT.name}"
    for text in hosts.at_once({name: (script, env) for name, env in again.items()}):
        assert "Nothing to do" in text
    assert {name: hosts.agents(name) for name in hosts.names} == before


def test_the_token_is_in_no_command_line_and_no_log(hosts: Hosts) -> None:
    shown = (
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ';"
        " find /databricks /var/log/sparkray /tmp -name '*.log' -exec cat {} +;"
        " ls /databricks/driver/logs/sparkray"
    )
    for name in hosts.names:
        text = hosts.run(name, shown).stdout
        assert "sparkray" in text and "node-" in text
        assert TOKEN not in text
        for log in hosts.tool.logs(name).values():
            assert TOKEN not in log.read_text()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"SPARKRAY_TOKEN": ""}, "no token: set SPARKRAY_TOKEN"),
        ({"SPARKRAY_TOKEN": "", "SPARKRAY_TOKEN_FILE": "/nowhere"}, "cannot read /now"),
        ({"SPARKRAY_REQUIREMENT": "/nowhere.whl"}, "there is no /nowhere.whl"),
        ({"SPARKRAY_WORKER_PORTS": "any"}, "has to be like 20000-25000, not any"),
        ({"SPARKRAY_PYTHON": "/nowhere/python"}, "no Python at /nowhere/python"),
        ({"DB_DRIVER_IP": ""}, "DB_DRIVER_IP is not set"),
        ({"SPARKRAY_TOKEN": "5ec12e7"}, "SPARKRAY_TOKEN is too short"),
        ({"SPARKRAY_TOKEN": "{{secrets/5ec12e7/none}}"}, "a secret that is not there"),
    ],
)
def test_a_setting_that_cannot_be_used_is_a_clear_failure(
    hosts: Hosts, settings: dict[str, str], complaint: str
) -> None:
    script = f"/databricks/init_scripts/00_{INIT_SCRIPT.name}"
    done = hosts.run("driver", ["bash", script], env=settings, cwd="/")
    assert done.returncode == 1
    assert complaint in done.stderr and "Traceback" not in done.stderr
    assert "5ec12e7" not in done.stderr + done.stdout
    assert len(hosts.agents("driver")) == 1


def test_all_settings_are_heeded_where_another_cluster_runs_already(
    hosts: Hosts,
) -> None:
    """A pip requirement, a log directory that is no platform's own, and ports."""
    settings = {
        "SPARKRAY_REQUIREMENT": "sparkray>=0.1",
        "SPARKRAY_PORT": "9350",
        "SPARKRAY_WORKER_PORTS": "21000-21020",
        "SPARKRAY_TEMP_DIR": "/tmp/third",
        "SPARKRAY_LOG_DIR": "/tmp/third-logs",
        "SPARKRAY_NUM_CPUS": "3",
        "SPARKRAY_OBJECT_STORE_MEMORY": "150000000",
    }
    script = f"bash /databricks/init_scripts/00_{INIT_SCRIPT.name}"
    work = dict.fromkeys(("worker1", "driver"), (script, settings))
    for text in hosts.at_once(work):
        assert "logs are in /tmp/third-logs" in text
    own = {name: settings[name] for name in ("SPARKRAY_TEMP_DIR",)}
    with hosts.notebook(SETTINGS, env=own) as notebook:
        told = notebook.next()
        notebook.end()
    assert told["address"] == f"{hosts.tool.ip('driver')}:9350"
    assert told["cpus"] == 6 and told["store"] == 300_000_000
    assert told["ports"]
    assert all(21000 <= port <= 21020 for port in told["ports"])
    for name in work:
        logs = hosts.run(name, "ls /tmp/third-logs").stdout
        assert "node-" in logs and "worker-" in logs
    done = hosts.run("driver", ["python", "-m", "sparkray", "stop"], env=own)
    assert done.returncode == 0, done.stderr


SETTINGS = """
import psutil
context = sparkray.init()
nodes = await_nodes(2)
total = sparkray.cluster_resources()
[place_of(node) for node in nodes]

@sparkray.remote
def ports():
    found = psutil.Process().net_connections()
    return [c.laddr.port for c in found if c.status == "LISTEN"]

used = sparkray.get([ports.options(**on(node)).remote() for node in nodes])
tell(
    address=context.address,
    cpus=total["CPU"],
    store=total["object_store_memory"],
    ports=sum(used, []),
)
"""


def test_another_wheel_of_the_same_version_takes_the_place_of_the_first(
    hosts: Hosts,
) -> None:
    """Running clusters are left alone; the next process has the new one."""
    folder = hosts.tool.path("worker2", "/tmp/rebuilt")
    folder.mkdir()
    wheel = make_wheel(folder, {"sparkray/words.py": b"REBUILT = True\n"})
    env = {"SPARKRAY_REQUIREMENT": f"/tmp/rebuilt/{wheel.name}"}
    script = f"bash /databricks/init_scripts/00_{INIT_SCRIPT.name}"
    for _ in range(2):
        (text,) = hosts.at_once({"worker2": (script, env)})
        assert "Nothing to do" in text
        look = "import sparkray.words; print(sparkray.words.REBUILT)"
        done = hosts.run("worker2", ["python", "-c", look], cwd="/")
        assert done.stdout.strip() == "True", done.stderr


FLOOD = """
context = sparkray.init()

@sparkray.remote
def busy():
    time.sleep(0.1)
    return socket.gethostname()

@sparkray.remote
class Board:
    def owner(self):
        return "flood"

board = Board.options(name="board", num_cpus=0).remote()
sparkray.get(board.owner.remote())
refs, used = [busy.remote() for _ in range(300)], set()
told = False
while not os.path.exists("/tmp/other-is-done"):
    done, refs = sparkray.wait(refs, num_returns=12)
    used.update(sparkray.get(done))
    refs += [busy.remote() for _ in done]
    if len(used) == 3 and not told:
        told = True
        tell(job=context.job_id, namespace=context.namespace)
tell(waiting=len(refs))
for ref in refs:
    sparkray.cancel(ref)
"""
OTHER = """
context = sparkray.init()

@sparkray.remote
def work(x):
    return x * x

try:
    sparkray.get_actor("board")
    found = True
except ValueError:
    found = False
tell(job=context.job_id, namespace=context.namespace, found=found)
tell(total=sum(sparkray.get([work.remote(x) for x in range(60)])))
open("/tmp/other-is-done", "w").close()
"""


def test_a_notebook_that_floods_the_cluster_does_not_starve_another(
    hosts: Hosts,
) -> None:
    with hosts.notebook(FLOOD) as flood:
        first = flood.next()
        with hosts.notebook(OTHER) as other:
            second = other.next()
            assert other.next()["total"] == sum(x * x for x in range(60))
            other.end()
        assert flood.next()["waiting"] == 300  # it had work all the time
        flood.end()
    assert first["job"] != second["job"]
    assert first["namespace"] != second["namespace"] and not second["found"]


JOIN = """
context = sparkray.init()
nodes = await_nodes(2)
tell(address=context.address, hosts=[place_of(node) for node in nodes])
"""
NOT_DATABRICKS = {"DB_DRIVER_IP": "", "DB_IS_DRIVER": "", "SPARKRAY_TOKEN": ""}


@pytest.mark.long
@pytest.mark.parametrize(
    ("platform", "port"), [("like_emr.sh", 9340), ("like_dataproc.sh", 9341)]
)
def test_the_scripts_for_other_platforms_bring_up_the_same(
    hosts: Hosts, wheel: Path, platform: str, port: int
) -> None:
    like = Path(__file__).with_name(platform)
    env = {**NOT_DATABRICKS, "TOKEN": TOKEN, "WHEEL": wheel.name}
    env["PRIMARY"] = hosts.run("driver", ["hostname"]).stdout.strip()
    for name in ("worker1", "driver"):
        bucket = hosts.tool.path(name, "/tmp/bucket")
        bucket.mkdir(exist_ok=True)
        for file in (wheel, like, *INIT_SCRIPT.parent.glob("*.sh")):
            shutil.copy(file, bucket)
    work = (f"bash /tmp/bucket/{platform}", env)
    for text in hosts.at_once({"worker1": work, "driver": work}):
        assert TOKEN not in text
    other = {"SPARKRAY_TEMP_DIR": "/tmp/other"}
    with hosts.notebook(JOIN, env=other) as notebook:
        told = notebook.next()
        notebook.end()
    assert told["address"] == f"{hosts.tool.ip('driver')}:{port}"
    assert len(set(told["hosts"])) == 2
    done = hosts.run("driver", ["python", "-m", "sparkray", "stop"], env=other)
    assert done.returncode == 0, done.stderr
