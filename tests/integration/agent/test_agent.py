"""Real agents, driven over their real socket by a client that is not a `Runtime`."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkray.protocol import control
from sparkray.protocol import messages as m
from sparkray.protocol.codec import decode_as, encode
from sparkray.resources import UNIT
from tests.integration.agent.raw_client import RawClient, eventually

StartCluster = Callable[..., Any]


class Node:
    """One running node and ways to look at it."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.token = bytes.fromhex(Path(cluster.token_file).read_text())
        self.node_id = bytes.fromhex(node.node_id)
        self.clients: list[RawClient] = []

    def client(self) -> RawClient:
        path = os.path.join(self.node.session_dir, "agent.sock")
        self.clients.append(RawClient(path, self.token))
        return self.clients[-1]

    def driver(self, **config: Any) -> RawClient:
        client = self.client()
        client.attach(**config)
        return client

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.node.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """Processes whose parent is a zygote."""
        zygotes = {child.pid for child in psutil.Process(self.node.pid).children()}
        return [p for p in self.processes() if p.ppid() in zygotes]

    def log_of(self, worker_id: bytes, kind: str = "out") -> Any:
        logs = Path(self.node.session_dir, "logs")
        return eventually(
            lambda: next(logs.glob(f"worker-*-{worker_id.hex()}.{kind}"), None)
        )


@pytest.fixture
def start(start_cluster: StartCluster) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start_one(**arguments: Any) -> Node:
        cluster = start_cluster(**{"num_cpus": 2, **arguments})
        started.append(Node(cluster, cluster.head_node))
        return started[-1]

    yield start_one
    for node in started:
        for client in node.clients:
            client.close()


def pid_of(node: Node, worker_id: bytes) -> int:
    """Find a worker's process by the socket that it listens on."""
    path = f"{worker_id.hex()[:16]}.sock"
    for process in node.workers():
        if any(path in c.laddr for c in process.net_connections("unix") if c.laddr):
            return process.pid
    raise AssertionError("no such worker")


def head_call(client: RawClient, method: str, request: Any) -> Any:
    answer = client.call(m.HeadCall, method, encode(request))
    assert isinstance(answer, m.HeadReply), answer
    return decode_as(control.HEAD_CALLS[method][1], answer.body)


def free_cpus(client: RawClient) -> float:
    nodes = head_call(client, "ListNodes", control.ListNodes()).nodes
    return sum(node.available.get("CPU", 0) for node in nodes if node.alive) / UNIT


def test_a_worker_is_lent_returned_and_lent_again(start: Callable[..., Node]) -> None:
    driver = start().driver()
    first = driver.lease().leases[0]
    assert os.path.exists(first.worker.path)
    driver.send(m.ReturnLease(first.lease_id, True))
    second = driver.lease().leases[0]
    assert second.worker == first.worker and second.lease_id != first.lease_id


def test_the_first_workers_of_a_job_start_before_they_are_asked_for(
    start: Callable[..., Node],
) -> None:
    node = start()
    node.driver()
    eventually(lambda: len(node.workers()) == min(2, psutil.cpu_count()))


def test_a_withdrawn_request_is_answered_empty(start: Callable[..., Node]) -> None:
    driver = start(num_cpus=1).driver()
    driver.lease()
    call = driver.begin_lease()
    driver.send(m.WithdrawRequest(call))
    assert driver.answer_to(call) == m.LeasesGranted(call, [])


def test_a_killed_worker_gives_its_cpu_back_and_how_it_ended_is_known(
    start: Callable[..., Node],
) -> None:
    node = start(num_cpus=1)
    driver = node.driver()
    worker = driver.lease().leases[0].worker
    node.log_of(worker.worker_id, "err").write_text("something bad\n")
    os.kill(pid_of(node, worker.worker_id), signal.SIGSEGV)
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert death.kind == "signal" and "SIGSEGV" in death.reason
    first, *fault = death.log_tail.splitlines()
    assert first == "something bad" and "Segmentation fault" in fault[0]
    assert driver.lease().leases[0].worker != worker


def test_kill_worker_ends_it_and_what_it_started(start: Callable[..., Node]) -> None:
    node = start()
    driver = node.driver()
    worker = driver.lease().leases[0].worker
    pid = pid_of(node, worker.worker_id)
    done = driver.call(m.KillWorker, worker.worker_id, worker.node_id, "test")
    assert isinstance(done, m.Done)
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert "SIGKILL" in death.reason and "test" in death.reason
    assert not psutil.pid_exists(pid)


def test_a_driver_that_ends_takes_its_workers_with_it(
    start: Callable[..., Node],
) -> None:
    node = start()
    other = node.driver()
    driver = node.driver()
    job_id = driver.attached.job_id
    lent = driver.lease().leases[0].worker
    driver.close()
    eventually(lambda: not os.path.exists(lent.path) or not _has(node, lent.worker_id))
    jobs = {
        job.job_id: job for job in head_call(other, "ListJobs", control.ListJobs()).jobs
    }
    assert eventually(lambda: not jobs[job_id].alive or _job_ended(other, job_id))
    eventually(lambda: free_cpus(other) == 2)


def _has(node: Node, worker_id: bytes) -> bool:
    try:
        pid_of(node, worker_id)
    except (AssertionError, psutil.Error):
        return False
    return True


def _job_ended(client: RawClient, job_id: bytes) -> bool:
    jobs = head_call(client, "ListJobs", control.ListJobs()).jobs
    return any(job.job_id == job_id and not job.alive for job in jobs)


def test_a_killed_agent_leaves_no_process_no_segment_and_no_directory(
    start: Callable[..., Node],
) -> None:
    node = start()
    driver = node.driver()
    driver.lease()
    created = driver.call(m.CreateObject, driver.worker_id + bytes(12), 1 << 20)
    assert os.path.exists(created.path)
    processes = node.processes()
    assert len(processes) >= 2
    os.kill(node.node.pid, signal.SIGKILL)
    eventually(lambda: not any(p.is_running() for p in processes))
    eventually(lambda: not os.path.exists(os.path.dirname(created.path)))
    eventually(lambda: not os.path.exists(node.node.session_dir))


def test_a_killed_zygote_is_replaced(start: Callable[..., Node]) -> None:
    node = start()
    driver = node.driver()
    worker = driver.lease().leases[0].worker
    zygote = psutil.Process(pid_of(node, worker.worker_id)).ppid()
    os.kill(zygote, signal.SIGKILL)
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert death.kind == "signal"
    assert driver.lease().leases[0].worker.worker_id != worker.worker_id


def test_variables_of_a_runtime_environment_are_set_before_python_starts(
    start: Callable[..., Node],
) -> None:
    node = start()
    driver = node.driver()
    env = '{"env_vars":{"SOME_NAME":"some value"}}'
    worker = driver.lease(runtime_env=env).leases[0].worker
    environment = psutil.Process(pid_of(node, worker.worker_id)).environ()
    assert environment["SOME_NAME"] == "some value"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "SPARKRAY_TOKEN" not in environment


def test_a_zygote_that_nobody_needs_any_more_ends_and_the_node_lives_on(
    start: Callable[..., Node],
) -> None:
    node = start()
    driver, special = node.driver(), node.driver()
    before = len(psutil.Process(node.node.pid).children())
    special.lease(runtime_env='{"env_vars":{"A":"1"}}')
    zygotes = psutil.Process(node.node.pid).children
    assert len(zygotes()) == before + 1
    special.close()
    eventually(lambda: len(zygotes()) == before)
    assert os.path.exists(node.node.session_dir)
    assert driver.lease().leases


def test_an_environment_in_which_python_cannot_start_fails_with_its_words(
    start: Callable[..., Node],
) -> None:
    driver = start().driver()
    failed = driver.lease(runtime_env='{"env_vars":{"PYTHONHOME":"/nowhere"}}')
    assert failed.error.kind == "RuntimeEnvSetupError"
    assert "/nowhere" in failed.error.args[0]


def test_a_runtime_environment_that_is_not_understood_fails_the_request(
    start: Callable[..., Node],
) -> None:
    failed = start().driver().lease(runtime_env='{"conda":"x"}')
    assert failed.error.kind == "RuntimeEnvSetupError"


def test_what_no_node_can_serve_fails_in_time(start: Callable[..., Node]) -> None:
    driver = start(environment={"SPARKRAY_INFEASIBLE_TIMEOUT_S": "0.5"}).driver()
    failed = driver.lease(resources={"CPU": 64 * UNIT})
    assert failed.error.kind == "UnschedulableError"
    assert "CPU: 64" in failed.error.args[0] and "CPU: 2" in failed.error.args[1]


def test_what_a_worker_prints_reaches_its_driver_without_markers(
    start: Callable[..., Node],
) -> None:
    node = start()
    driver = node.driver()
    worker = driver.lease().leases[0].worker
    with node.log_of(worker.worker_id).open("ab") as log:
        log.write(b"\x01task:work\nhello\nworld\n")
    lines = driver.wait_for(lambda message: isinstance(message, m.LogLines))
    assert (lines.name, lines.lines) == ("work", ["hello", "world"])
    assert not lines.is_stderr and lines.host == socket.gethostname()


def test_a_driver_that_wants_no_logs_gets_none(start: Callable[..., Node]) -> None:
    node = start()
    quiet = node.driver(log_to_driver=False)
    worker = quiet.lease().leases[0].worker
    with node.log_of(worker.worker_id).open("ab") as log:
        log.write(b"hello\n")
    with pytest.raises(TimeoutError):
        quiet.wait_for(lambda message: isinstance(message, m.LogLines), 1.0)


def test_an_object_is_written_sealed_pinned_and_freed(
    start: Callable[..., Node],
) -> None:
    driver = start().driver()
    object_id = driver.worker_id + bytes(12)
    created = driver.call(m.CreateObject, object_id, 100_000)
    assert created.capacity_bytes >= 100_000
    Path(created.path).write_bytes(b"x" * 100_000)
    driver.send(m.SealObject(object_id, driver.worker_id))
    pinned = driver.call(m.PinObject, object_id, [])
    assert (pinned.path, pinned.size_bytes) == (created.path, 100_000)
    driver.send(m.UnpinObjects([object_id]))
    driver.send(m.FreeObjects([object_id], []))
    lost = driver.call(m.PinObject, object_id, [])
    assert lost.error.kind == "ObjectLostError"


def test_objects_of_a_dead_runtime_are_freed(start: Callable[..., Node]) -> None:
    node = start()
    driver, other = node.driver(), node.driver()
    object_id = driver.worker_id + bytes(12)
    created = driver.call(m.CreateObject, object_id, 100_000)
    assert isinstance(created, m.ObjectCreated)
    driver.send(m.SealObject(object_id, driver.worker_id))
    assert isinstance(driver.call(m.PinObject, object_id, []), m.ObjectPinned)
    driver.close()
    eventually(lambda: isinstance(other.call(m.PinObject, object_id, []), m.CallFailed))


def test_objects_are_listed_and_runtimes_that_do_not_answer_are_named(
    start: Callable[..., Node],
) -> None:
    driver = start().driver()
    call = driver.begin(m.HeadCall, "ListObjects", encode(control.ListObjects()))
    dump = driver.wait_for(lambda message: isinstance(message, m.DumpObjects))
    row = m.ObjectRow(b"o", 5, "inline", 1, 0, 0, [], os.getpid(), b"w", "task")
    driver.send(m.ObjectsDumped(dump.call, [row]))
    reply = driver.answer_to(call)
    assert row in decode_as(control.ObjectList, reply.body).rows
    call = driver.begin(m.HeadCall, "ListObjects", encode(control.ListObjects()))
    reply = driver.answer_to(call)
    assert str(os.getpid()) in str(decode_as(control.ObjectList, reply.body).missing)


def test_a_runtime_of_another_version_is_told_both(start: Callable[..., Node]) -> None:
    client = start().client()
    versions = {"python": "2.7.18", "sparkray": "0.0.1"}
    client.send(m.Attach("driver", client.worker_id, 1, b"", "", "", 0, None, versions))
    failed = client.answer_to(0)
    assert failed.error.kind == "ProtocolError"
    assert "2.7.18" in failed.error.args[0]
    with pytest.raises(ConnectionError):
        client.wait_for(lambda message: False)


def test_short_memory_ends_the_newest_worker_and_says_so(
    start: Callable[..., Node],
) -> None:
    node = start(environment={"SPARKRAY_MEMORY_THRESHOLD": "0.0001"})
    driver = node.driver()
    worker = driver.lease().leases[0].worker
    death = driver.call(m.AskDeath, worker.worker_id, worker.node_id)
    assert death.kind == "oom"
    assert "MiB" in death.reason and "threshold" in death.reason


def test_leases_rotate_to_those_who_wait(start: Callable[..., Node]) -> None:
    node = start(num_cpus=1)
    greedy, poor = node.driver(), node.driver()
    lease = greedy.lease().leases[0]
    call = poor.begin_lease()
    # The worker passes the wish on to its lease holder, which this client is not
    # connected to; the holder's part is played here.
    with pytest.raises(TimeoutError):
        poor.answer_to(call, timeout_s=0.3)
    greedy.send(m.ReturnLease(lease.lease_id, True))
    assert poor.answer_to(call).leases


class TestHostilePeers:
    def test_without_the_token_nothing_is_said(
        self, start: Callable[..., Node]
    ) -> None:
        node = start()
        path = os.path.join(node.node.session_dir, "agent.sock")
        with pytest.raises(ConnectionError):
            RawClient(path, b"\x00" * 32)
        assert node.driver().attached.node_id == node.node_id

    @pytest.mark.parametrize(
        "garbage", [b"GET / HTTP/1.1\r\n\r\n" * 20, b"\xff" * 4096, b"\x80\x04N."]
    )
    def test_garbage_closes_the_connection_or_is_left_waiting(
        self, start: Callable[..., Node], garbage: bytes
    ) -> None:
        node = start()
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(5)
            raw.connect(os.path.join(node.node.session_dir, "agent.sock"))
            raw.sendall(garbage)
            if len(garbage) > 40:
                with pytest.raises((ConnectionError, AssertionError)):
                    assert raw.recv(100)
        assert node.driver().attached

    def test_another_first_message_than_attach_closes_the_channel(
        self, start: Callable[..., Node]
    ) -> None:
        client = start().client()
        client.send(m.Blocked())
        with pytest.raises(ConnectionError):
            client.wait_for(lambda message: False)

    def test_the_socket_and_the_segments_are_for_this_user_only(
        self, start: Callable[..., Node]
    ) -> None:
        node = start()
        session = Path(node.node.session_dir)
        assert (session / "agent.sock").stat().st_mode & 0o077 == 0
        assert session.stat().st_mode & 0o077 == 0
        driver = node.driver()
        created = driver.call(m.CreateObject, driver.worker_id + bytes(12), 4096)
        segment = Path(created.path)
        assert segment.stat().st_mode & 0o077 == 0
        assert segment.parent.stat().st_mode & 0o077 == 0
