"""Ways to make a cluster fail on purpose, to see what a program does then.

Inside tasks and actors: `crash`, and `flaky`, a crash point that only sometimes does.
From outside: `kill_worker`, `kill_random_worker`, `killing_workers`, `kill_node`.

    with Cluster(head_node_args={"num_cpus": 4}) as cluster:
        sparkray.init(address=cluster.address)
        with killing_workers(every_s=0.5, seed=1) as killer:
            assert my_program() == expected
        print(killer.kills, "workers died")

Everything here really happens to real processes.  The functions that choose by chance
take a seed, and with the same seed choose alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Literal, NoReturn, get_args

import psutil

import sparkray
from sparkray.protocol.messages import Address, KillWorker
from sparkray.runtime import core
from sparkray.testing.cluster import Cluster, ClusterNode

__all__ = [
    "Flaky",
    "How",
    "Killer",
    "crash",
    "flaky",
    "kill_node",
    "kill_random_worker",
    "kill_worker",
    "killing_workers",
    "worker_pids",
]

How = Literal["exit", "os._exit", "SIGKILL", "segfault", "memory", "hang"]

#: What `crash` ends a process with, where it has a say.
EXIT_CODE: Final = 7
#: With "memory" a process may grow by so much before an allocation fails.
MEMORY_BYTES: Final = 64 << 20
_POLL_S: Final = 0.02


#: In the command line of the processes that fork workers.
_ZYGOTE: Final = "sparkray.worker.zygote"


def crash(how: How = "SIGKILL") -> NoReturn:
    """Fail here and now, in a task, an actor, or code that these call.

    Args:
        how: ``"exit"``: `SystemExit`; ``"os._exit"``, ``"SIGKILL"``, ``"segfault"``:
            the process ends at once; ``"memory"``: `MemoryError`, from an allocation
            beyond a limit that is set for this moment only, so the host is in no
            danger; ``"hang"``: wait for ever, in a way that `sparkray.cancel` and
            ``timeout_s`` can interrupt.

    Raises:
        SystemExit: for ``"exit"``.
        MemoryError: for ``"memory"``.
        ValueError: there is no such way.
    """
    if how not in get_args(How):
        raise ValueError(f"how must be one of {', '.join(get_args(How))}, not {how!r}")
    if how == "exit":
        sys.exit(EXIT_CODE)
    if how == "os._exit":
        os._exit(EXIT_CODE)
    if how == "memory":
        _run_out_of_memory()
    if how == "segfault":
        ctypes.string_at(8)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(3600)


def _run_out_of_memory() -> NoReturn:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        bytearray(2 * MEMORY_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    raise MemoryError("the limit on memory was not heeded")


class Flaky:
    """A crash point that some calls survive; see `flaky`.

    Calls are counted over all processes of this host, in the order in which they come:
    with the same seed, the same ones crash.
    """

    def __init__(self, p: float, seed: int, how: How) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability, not {p!r}")
        if how not in get_args(How):
            raise ValueError(f"how must be one of {get_args(How)}, not {how!r}")
        self._p, self._seed, self._how = p, seed, how
        fd, self._path = tempfile.mkstemp(prefix="sparkray-flaky-")
        os.close(fd)

    def __call__(self) -> None:
        """Crash, or do nothing."""
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, b".")
            number = os.lseek(fd, 0, os.SEEK_CUR) - 1  # where that byte went
        finally:
            os.close(fd)
        if self._crashes(number):
            crash(self._how)

    def _crashes(self, number: int) -> bool:
        return random.Random(f"{self._seed}/{number}").random() < self._p

    @property
    def calls(self) -> int:
        """How often it was called so far."""
        return os.path.getsize(self._path)

    @property
    def crashes(self) -> int:
        """How many of these calls crashed."""
        return sum(map(self._crashes, range(self.calls)))


@contextlib.contextmanager
def flaky(p: float, *, seed: int = 0, how: How = "SIGKILL") -> Iterator[Flaky]:
    """Give a crash point to call in tasks; it works within the block, on this host.

        with flaky(0.2, seed=1) as point:

            @sparkray.remote(max_retries=-1)
            def work(x):
                point()
                return x

    Args:
        p: the share of calls that crash.
        how: as for `crash`.

    Raises:
        ValueError: ``p`` or ``how`` is none.
    """
    made = Flaky(p, seed, how)
    try:
        yield made
    finally:
        os.unlink(made._path)


def kill_worker(target: Any, *, timeout_s: float = 10.0) -> None:
    """Kill the process that an actor is, or that a task of ours was sent to.

    Args:
        target: an actor's handle, or the ref of a task that this process called.
        timeout_s: how long to wait for the actor to live, or the task to be sent.

    Raises:
        TypeError: ``target`` is neither.
        TimeoutError: there is no such process, or it did not get there in time; a task
            that has ended is in no process.
    """
    runtime = core.current()
    deadline = time.monotonic() + timeout_s
    while (address := _process_of(runtime, target)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{target!r} is in no process after {timeout_s:g} s")
        time.sleep(_POLL_S)
    reason = "sparkray.testing.faults.kill_worker was called"
    runtime.shared.agent.call(
        lambda call: KillWorker(call, address.worker_id, address.node_id, reason), 10.0
    )


def _process_of(runtime: core.Runtime, target: Any) -> Address | None:
    if isinstance(target, sparkray.ObjectRef):
        with runtime.shared.lock:
            entry = runtime.shared.table.entries.get(target.binary())
            task = None if entry is None else entry.task
            worker = getattr(task, "worker", None)
            return None if worker is None else worker.lease.worker
    bond = getattr(target, "__sparkray__", None)
    if bond is None:
        raise TypeError(f"kill_worker takes an actor's handle or a ref, not {target!r}")
    bond.join()
    row = bond.client.row
    address: Address | None = None if row is None else row.address
    return address


def worker_pids() -> list[int]:
    """Return the worker processes of all nodes that this process started: those of a
    private cluster, and of every `sparkray.testing.Cluster`."""
    found: list[int] = []
    for node in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            for zygote in node.children():
                if any(_ZYGOTE in word for word in zygote.cmdline()):
                    found += [worker.pid for worker in zygote.children()]
    return sorted(found)


def kill_random_worker(seed: int | random.Random = 0) -> int | None:
    """Kill one of `worker_pids`; return which, or None if there was none.

    Args:
        seed: a number, or a generator for a series of kills.
    """
    chance = seed if isinstance(seed, random.Random) else random.Random(seed)
    pids = worker_pids()
    if not pids:
        return None
    pid = chance.choice(pids)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended by itself meanwhile
        return None
    return pid


class Killer:
    """What `killing_workers` has done so far."""

    def __init__(self) -> None:
        self.kills = 0


@contextlib.contextmanager
def killing_workers(every_s: float, *, seed: int = 0) -> Iterator[Killer]:
    """Kill a worker every now and then as long as the block runs.

    Args:
        every_s: the mean time between kills.
    """
    killer, chance, end = Killer(), random.Random(seed), threading.Event()

    def kill_until_the_end() -> None:
        while not end.wait(chance.uniform(0, 2 * every_s)):
            killer.kills += kill_random_worker(chance) is not None

    thread = threading.Thread(target=kill_until_the_end, daemon=True)
    thread.start()
    try:
        yield killer
    finally:
        end.set()
        thread.join()


def kill_node(cluster: Cluster, node: ClusterNode | None = None) -> ClusterNode:
    """Kill all processes of a node at once, as when its machine loses power.

    Args:
        node: default: the one that was added last.

    Returns:
        the node that was killed.

    Raises:
        ValueError: it is not of this cluster, or only the head node is left.
    """
    if node is None:
        others = [member for member in cluster.nodes if not member.is_head]
        if not others:
            raise ValueError("only the head node is left: name it to kill it")
        node = others[-1]
    cluster.remove_node(node, allow_graceful=False)
    return node
