"""What runs on an executor, in a Spark Python worker: one node for this executor.

Spark sends `NodeTask` in the task's closure, with the address and the token in it:
these so appear in no Spark configuration, no command line and no log.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkray.protocol.versions import Versions, difference, own_versions
from sparkray.spark import addresses, discovery, sizing
from sparkray.spark.guard import LOOK_S, Order, await_head, encode, head_answers

if TYPE_CHECKING:
    import pyarrow

#: Columns of the one row that a launch ends with.
SCHEMA = "executor string, state string, detail string"
#: How long a node tries to reach its head before it says that it cannot.
REACH_HEAD_S = 10.0
#: Executor variables that name its scratch directories: standalone, YARN, everywhere.
_SCRATCH = ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS")
#: Variables that the node must not have: Spark's secrets, and another cluster's token.
_PRIVATE = (
    "SPARKRAY_TOKEN",
    "PYTHON_WORKER_FACTORY_",
    "SPARK_AUTH",
    "_SPARK_AUTH",
    "PYSPARK_GATEWAY",
)


@dataclass(frozen=True)
class NodeTask:
    """The function of the Spark job that starts a node.  Pickled to the executor."""

    address: str
    token: str
    app_id: str
    timeout_s: float
    versions: Versions  #: the driver's
    launch: int = 0  #: the number of the job
    waits: bool = False  #: keeps its slot where the executor has a node already
    cores: int | None = None  #: as configured; the executor's own word goes first
    task_cpus: int = 1
    gpus: float = 0  #: of an executor, as configured
    task_gpus: float = 0
    hold_slots: bool | None = None
    num_cpus: float | None = None
    object_store_memory: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    spill_dirs: str = ""
    worker_port_min: int | None = None
    worker_port_max: int | None = None

    def __call__(
        self, batches: Iterator[pyarrow.RecordBatch]
    ) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            pass
        executor, said = self._run()
        yield _row(executor, said)

    def _run(self) -> tuple[str, dict[str, str]]:
        refusal = self._refusal()
        if refusal:
            return "?", {"state": "refused", "detail": refusal}
        jvm = discovery.executor_process()
        if jvm is None:
            reason = f"the Python worker {os.getpid()} has no Java process above it"
            return "?", {"state": "failed", "detail": reason}
        command = sizing.read_executor_command(jvm.cmdline())
        if not await_head(self.address, REACH_HEAD_S):
            reason = (
                f"the head at {self.address} cannot be reached from executor"
                f" {command.executor_id} on {os.uname().nodename}"
            )
            return command.executor_id, {"state": "failed", "detail": reason}
        order = self._order(jvm.pid, jvm.create_time(), command)
        said = _run_guard(order)
        if said["state"] == "taken" and self.waits:
            self._fill_slot()
        return command.executor_id, said

    def _refusal(self) -> str:
        """Say what keeps every node on this host from joining; "" if nothing does."""
        ours = own_versions()
        if ours.fits(self.versions):
            return ""
        where = f"the executor on {os.uname().nodename}"
        return difference(where, ours, "the driver", self.versions)

    def _fill_slot(self) -> None:
        """Keep the slot: other jobs go elsewhere, or Spark brings up an executor.

        Ends when the driver cancels the job, or the cluster has ended.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline_s and head_answers(self.address):
            time.sleep(LOOK_S)

    def _order(
        self, pid: int, started_s: float, command: sizing.ExecutorCommand
    ) -> Order:
        cores = command.cores or self.cores or 1
        slots = sizing.slots_of(cores, self.task_cpus, self.gpus, self.task_gpus)
        devices = _devices()
        host = _own_address(command.host, self.address)
        share = _share(
            cores,
            neighbours=_cores_of_others(pid),
            with_head=host == self.address.rpartition(":")[0],
        )
        return Order(
            token=self.token,
            address=self.address,
            executor_pid=pid,
            executor_started_s=started_s,
            app_id=self.app_id or command.app_id,
            hold=sizing.holds_slot(self.hold_slots, slots),
            timeout_s=self.timeout_s,
            num_cpus=cores if self.num_cpus is None else self.num_cpus,
            host=host,
            object_store_memory=self.object_store_memory or share.object_store_bytes,
            resources={
                "memory": share.memory_bytes,
                "GPU": len(devices),
                **self.resources,
            },
            labels={
                discovery.EXECUTOR_LABEL: command.executor_id,
                discovery.APP_LABEL: self.app_id or command.app_id,
                discovery.SLOTS_LABEL: str(slots),
                discovery.LAUNCH_LABEL: str(self.launch),
            },
            environment={**self._environment(), **_visible(devices)},
            worker_port_min=self.worker_port_min,
            worker_port_max=self.worker_port_max,
        )

    def _environment(self) -> dict[str, str]:
        told = sizing.default_settings(os.environ)
        if os.environ.get("SPARKRAY_SPILL_DIR"):
            return told
        named = [os.environ.get(name, "") for name in _SCRATCH] + [self.spill_dirs]
        for directory in ",".join(named).replace(os.pathsep, ",").split(","):
            if os.path.isdir(directory) and os.access(directory, os.W_OK):
                return {**told, "SPARKRAY_SPILL_DIR": directory}
        return told


def _devices() -> list[str]:
    """Return the addresses of the GPUs that Spark gave to this task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context is not None else None
    return [] if gpus is None else list(gpus.addresses)


def _visible(devices: list[str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}


def _run_guard(order: Order) -> dict[str, str]:
    """Start the guard; come back when the node is up, or has ended if it is held."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PRIVATE)
    }
    environment["PYTHONPATH"] = _import_path(environment.get("PYTHONPATH", ""))
    guard = subprocess.Popen(
        [sys.executable, "-m", "sparkray.spark.guard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    with guard.stdin, guard.stdout:
        guard.stdin.write(encode(order))
        guard.stdin.flush()
        line = guard.stdout.readline()
        said: dict[str, str] = json.loads(line) if line else {"state": "failed"}
        if said["state"] == "started" and order.hold:
            guard.stdout.read()  # ends with the guard
            said = {"state": "ended"}
    code = guard.wait()
    if not line or order.hold:
        said.setdefault("detail", f"exit code {code}")
    return said


def _import_path(given: str) -> str:
    """Return ``PYTHONPATH`` with the place of sparkray, unless it is found anyway:
    in front of it, installed packages would hide the standard library's."""
    root = str(Path(__file__).resolve().parents[2])
    known = [place for place in given.split(os.pathsep) if place]
    installed = os.path.basename(root) in ("site-packages", "dist-packages")
    return os.pathsep.join(known if installed or root in known else [root, *known])


def _cores_of_others(executor_pid: int) -> int:
    """Return how many cores the other executors that are to be seen here have."""
    import psutil

    cores = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != executor_pid and process.name() == "java":
                cores += sizing.cores_of_executor(process.cmdline())
    return cores


def _share(cores: float, *, neighbours: float, with_head: bool) -> sizing.Share:
    import psutil

    try:
        shm_free = psutil.disk_usage("/dev/shm").free
    except OSError:
        shm_free = 0
    host_cpus = os.cpu_count() or 1
    memory = psutil.virtual_memory().total
    return sizing.share_of_host(
        cores,
        host_cpus,
        memory,
        shm_free,
        neighbours=neighbours,
        with_head=with_head,
    )


def _own_address(host_name: str, head: str) -> str:
    """Return the address under which Spark knows this executor, if it is ours; else
    the one that the head sees.

    Raises:
        OSError: there is none.
    """
    host, _, port = head.rpartition(":")
    near = addresses.is_loopback(host)
    address = addresses.own_address(host_name, loopback=near)
    address = address or addresses.address_towards(host.strip("[]"), int(port))
    if not address:
        raise OSError(f"{os.uname().nodename} has no IPv4 address towards {head}")
    return address


def _row(executor: str, said: dict[str, str]) -> Any:
    import pyarrow as pa

    values = {
        "executor": executor,
        "state": said["state"],
        "detail": said.get("detail", ""),
    }
    return pa.RecordBatch.from_pydict(
        {name: pa.array([value], pa.string()) for name, value in values.items()}
    )
