"""Fixtures that start real clusters.  Each fails its test if anything is left behind.

fresh       nothing runs; the test calls `init` itself, as often as it likes
local       a private cluster of 4 CPUs and some custom resources, for one test
shared      the same, shared by the tests of one module, which must clean up
two_nodes   a head node and a second node (with the resource "second"), joined
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

import sparkray
from tests import leaks

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("sparkray", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sparkray")

LOCAL = {"num_cpus": 4, "resources": {"tok": 4, "gadget": 2}}
MB = 1 << 20


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the drivers that tests start, also where a shell has it ignored.

    Give the clusters of this pytest process a root of their own, with a short name:
    paths of Unix sockets are limited to 107 bytes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="srt-", dir="/tmp"))
    os.environ[leaks.VARIABLE] = str(root)
    os.environ.pop("SPARKRAY_ADDRESS", None)
    config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))


@pytest.fixture(scope="session")
def cluster_root() -> Path:
    """Where all session directories of this pytest process are."""
    return Path(os.environ[leaks.VARIABLE])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """Add the ends of the clusters' logs to the report of a failed test."""
    report = yield
    if report.failed and (text := leaks.logs(Path(os.environ[leaks.VARIABLE]))):
        report.sections.append(("logs of the cluster", text))
    return report


@contextmanager
def _session(root: Path, **arguments: Any) -> Iterator[ModuleType]:
    with leaks.no_leaks(root):
        try:
            if arguments:
                sparkray.init(**arguments)
            yield sparkray
        finally:
            sparkray.shutdown()


@pytest.fixture
def fresh(cluster_root: Path) -> Iterator[ModuleType]:
    with _session(cluster_root) as module:
        yield module


@pytest.fixture
def local(cluster_root: Path) -> Iterator[ModuleType]:
    with _session(cluster_root, **LOCAL) as module:
        yield module


@pytest.fixture(scope="module")
def shared(cluster_root: Path) -> Iterator[ModuleType]:
    with _session(cluster_root, **LOCAL) as module:
        yield module


@pytest.fixture
def no_garbage() -> None:
    """For tests that look at all objects: frames of errors that earlier tests caught
    hold refs in cycles, until Python comes to collect them."""
    gc.collect()


@pytest.fixture
def start_cluster(cluster_root: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a `sparkray.testing.Cluster` for this test."""
    from sparkray.testing import Cluster

    started: list[Cluster] = []

    def start(**head_node_args: Any) -> Cluster:
        started.append(Cluster(initialize_head=True, head_node_args=head_node_args))
        return started[-1]

    with leaks.no_leaks(cluster_root):
        try:
            yield start
        finally:
            sparkray.shutdown()
            for cluster in started:
                cluster.shutdown()


@pytest.fixture
def two_nodes(start_cluster: Callable[..., Any]) -> Any:
    """Return the cluster; its second node is ``cluster.second``."""
    cluster = start_cluster(num_cpus=2, object_store_memory=200 * MB)
    cluster.second = cluster.add_node(
        num_cpus=2, resources={"second": 4}, object_store_memory=200 * MB
    )
    cluster.wait_for_nodes()
    sparkray.init(address=cluster.address)
    return cluster
