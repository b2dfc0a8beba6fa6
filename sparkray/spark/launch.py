"""What the driver asks of Spark: facts about the application, and one job per node.

Each node is its own Spark job, so a lost executor costs one node.  Only DataFrame
calls start jobs (`mapInArrow`), so a Spark Connect session will do; what only a classic
session can tell (how many executors there are) is taken from settings there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from sparkray.spark import addresses, sizing
from sparkray.spark.executor import SCHEMA, NodeTask
from sparkray.spark.state.launches import Launches, cause_of

_log = logging.getLogger("sparkray")


class SparkFacts:
    """What a Spark session tells of its application."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.context = _classic_context(spark)
        self.master = self.conf("spark.master")
        known = sizing.read_master(self.master, os.cpu_count() or 1)
        self.cores = self._number("spark.executor.cores") or known.cores
        self.task_cpus = self._number("spark.task.cpus") or 1
        self.gpus = self._amount("spark.executor.resource.gpu.amount")
        self.task_gpus = self._amount("spark.task.resource.gpu.amount")
        self.dynamic = self.conf("spark.dynamicAllocation.enabled").lower() == "true"
        self.expected = known.executors
        if self.expected is None and not self.dynamic:
            self.expected = self._number("spark.executor.instances")
        self.limit = sizing.most_executors(
            self.master,
            known.executors,
            dynamic=self.dynamic,
            dynamic_max=self._number(sizing.MAX_EXECUTORS),
            cores_max=self._number("spark.cores.max"),
            executor_cores=self._number("spark.executor.cores"),
        )
        self.app_id = self.conf("spark.app.id")

    def conf(self, name: str) -> str:
        """Return a setting; "" if it is not set, or not to be read here."""
        try:
            return str(self.spark.conf.get(name, "") or "")
        except Exception as error:  # Spark has many ways to refuse
            _log.debug("cannot read %s: %s", name, error)
            return ""

    def executors(self) -> int | None:
        """Return how many executors there are now; None if Spark does not tell."""
        entries = self._read_infos(len)
        if entries is None:
            return self.expected
        return 1 if self._is_local() else entries - 1

    def occupancy(self) -> sizing.Occupancy:
        """Return what Spark does now, as far as it tells."""
        executors, slots = self.executors() or 0, self._slots()
        running = self._read_infos(
            lambda infos: sum(info.numRunningTasks() for info in infos)
        )
        total = None if slots is None else slots * executors
        return sizing.Occupancy(executors, running, total)

    def active_jobs(self) -> int | None:
        """Return how many jobs Spark runs, ours too; None if it does not tell."""
        if self.context is None:
            return None
        try:
            return len(self.context.statusTracker().getActiveJobsIds())
        except Exception as error:  # a guarded gateway, as on shared clusters
            _log.debug("cannot ask about jobs: %s", error)
            return None

    def is_stopped(self) -> bool:
        """Tell whether the session can run nothing any more."""
        if self.context is None:
            return bool(getattr(self.spark, "is_stopped", False))
        if self.context._jsc is None:
            return True
        try:
            return bool(self.context._jsc.sc().isStopped())
        except Exception as error:  # a guarded gateway, or its process is gone
            _log.debug("cannot tell if Spark is stopped: %s", error)
            return False

    def driver_address(self) -> str:
        """Return an address of this host that the executors can reach.

        Many hosts know their own name as a loopback address, which is of use only where
        the executors are on this host as well.
        """
        own = self._is_local() or self.master.startswith("local-cluster")
        for name in (self.conf("spark.driver.host"), socket.gethostname()):
            if address := addresses.own_address(name, loopback=own):
                return address
        return self._address_towards_master() or "127.0.0.1"

    def _address_towards_master(self) -> str:
        try:
            parts = urlsplit(self.master)
            return addresses.address_towards(parts.hostname or "", parts.port or 9)
        except ValueError:  # several masters: "spark://a:7077,b:7077"
            return addresses.address_towards("", 9)

    def _read_infos(self, read: Callable[[list[Any]], int]) -> int | None:
        """Read a number from what Spark tells of each executor and the driver.

        Returns:
            None if Spark tells nothing.  ``read`` may ask the JVM, which may refuse.
        """
        if self.context is None:
            return None
        try:
            tracker = self.context._jsc.sc().statusTracker()
            return read(list(tracker.getExecutorInfos()))
        except Exception as error:  # a guarded gateway, as on shared clusters
            _log.debug("cannot ask about executors: %s", error)
            return None

    def _is_local(self) -> bool:
        return self.master.startswith("local[") or self.master == "local"

    def _number(self, name: str) -> int | None:
        text = self.conf(name)
        return int(text) if text.isdecimal() and int(text) > 0 else None

    def _amount(self, name: str) -> float:
        with contextlib.suppress(ValueError):
            return max(0.0, float(self.conf(name)))
        return 0.0

    def _slots(self) -> int | None:
        if not self.cores:
            return None
        return sizing.slots_of(self.cores, self.task_cpus, self.gpus, self.task_gpus)


class Launcher:
    """Runs the Spark jobs that start nodes, each in a thread of its own.

    Each has a number, a job group (a tag on Spark Connect) and a description.
    """

    def __init__(self, facts: SparkFacts, task: NodeTask, cluster: str) -> None:
        self._facts = facts
        self._task = task
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the fields below
        self._jobs: dict[int, threading.Thread] = {}
        self._cancelled: set[int] = set()
        self._launches = Launches()
        self._taken_s = -math.inf
        self._closed = False

    @property
    def running(self) -> frozenset[int]:
        """The jobs that run: for nodes that are starting, or that hold a slot."""
        with self._lock:
            return frozenset(self._jobs)

    def failure(self) -> tuple[str, bool]:
        """Return why the last launch failed ("" if none did), and if all will."""
        with self._lock:
            return self._launches.failure, self._launches.hopeless

    def joined(self, numbers: Iterable[int]) -> None:
        """The nodes of these jobs are there."""
        with self._lock:
            for number in numbers:
                self._launches.joined(number)

    def may_launch(self) -> bool:
        """Tell whether the pause after a failure, if there was one, is over."""
        with self._lock:
            return self._launches.may_launch(time.monotonic())

    def found_taken(self, within_s: float) -> bool:
        """Tell if a job found a node on its executor no longer than that ago."""
        with self._lock:
            return time.monotonic() - self._taken_s < within_s

    def launch(self) -> None:
        """Start one more job.  What comes of it is seen by the node's joining."""
        with self._lock:
            if self._closed:
                return
            number = next(self._numbers)
            self._jobs[number] = threading.Thread(
                target=self._run,
                args=(number,),
                name=f"sparkray-launch-{number}",
                daemon=True,
            )
            self._jobs[number].start()

    def cancel(self, numbers: Iterable[int]) -> None:
        """End jobs that are not needed; each is asked once."""
        for number in numbers:
            with self._lock:
                if number not in self._jobs or number in self._cancelled:
                    continue
                self._cancelled.add(number)
            self._cancel(number)

    def close(self) -> None:
        """Start nothing any more."""
        with self._lock:
            self._closed = True

    def stop(self, timeout_s: float) -> None:
        """Wait for the jobs to end, as they do with their nodes; then cancel them."""
        self.close()
        if not self._join(timeout_s):
            for number in self.running:
                self._cancel(number)
            self._join(timeout_s)

    def _join(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._jobs.values())
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self.running

    def _run(self, number: int) -> None:
        try:
            self._name_job(number)
            one = self._facts.spark.range(0, 1, 1, 1)
            task = dataclasses.replace(self._task, launch=number)
            for row in one.mapInArrow(task, SCHEMA).collect():
                self._note(number, row["state"], row["detail"])
        except Exception as error:  # whatever Spark raises: kept for the message
            text, hopeless = cause_of(error)
            self._note(number, "refused" if hopeless else "failed", text)
        finally:
            with self._lock:
                del self._jobs[number]
                self._cancelled.discard(number)

    def _group(self, number: int) -> str:
        return f"sparkray-{self._cluster}-{number}"

    def _name_job(self, number: int) -> None:
        context, group = self._facts.context, self._group(number)
        if context is not None:
            text = f"sparkray node {number} (runs tasks until it idles, or shutdown)"
            context.setJobGroup(group, text)
        else:  # Spark 3.5 has this method on Connect sessions only
            self._facts.spark.addTag(group)

    def _cancel(self, number: int) -> None:
        with contextlib.suppress(Exception):  # Spark itself may be gone
            if self._facts.context is not None:
                self._facts.context.cancelJobGroup(self._group(number))
            else:
                self._facts.spark.interruptTag(self._group(number))

    def _note(self, number: int, state: str, detail: str) -> None:
        if state == "taken":
            with self._lock:
                self._taken_s = time.monotonic()
        if state not in ("failed", "refused"):
            return
        with self._lock:
            if self._closed or number in self._cancelled:
                return
            is_news = self._launches.failed(
                number, detail, time.monotonic(), hopeless=state == "refused"
            )
        level = logging.WARNING if is_news else logging.DEBUG
        _log.log(level, "a node did not start on Spark: %s", detail)


def _classic_context(spark: Any) -> Any:
    """Return the SparkContext of a classic session, None for a Connect session."""
    if ".connect." in type(spark).__module__:
        return None
    return spark.sparkContext
