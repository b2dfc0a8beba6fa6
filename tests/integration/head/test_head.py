"""A head behind real gRPC, and nodes that speak to it as agents do."""

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import msgspec
import pytest

from sparkray.config import Settings
from sparkray.exceptions import ProtocolError
from sparkray.head.service import RECONNECT_S, HeadService
from sparkray.head.servicer import HeadServicer
from sparkray.protocol import actors, control, environments
from sparkray.protocol.control import DownItem, NodeInfo, UpItem
from sparkray.protocol.messages import (
    Address,
    JobConfig,
    LeaseSpec,
    ObjectRow,
    Strategy,
)
from sparkray.transport import server
from sparkray.transport.client import Peer

TOKEN = b"\x07" * 32
VERSION = "1.2"
PYTHON = platform.python_version()
CPUS_4 = {"CPU": 40_000}


class AgentServicer:
    """What the head calls on an agent."""

    service = "Agent"
    calls: ClassVar[server.Calls] = {"ListObjects": control.AGENT_CALLS["ListObjects"]}
    streams: ClassVar[server.Calls] = {}

    def __init__(self, node: "Node") -> None:
        self._node = node

    async def list_objects(self, _: control.ListObjects) -> control.ObjectList:
        id_ = self._node.info.node_id
        row = ObjectRow(id_, 1, "stored", 1, 0, 0, [id_], 1, b"w", "f")
        return control.ObjectList([row], {id_.hex(): 1}, [])


class Node:
    """The head's side of an agent: registers, reports, notes what it is told."""

    def __init__(self, address: str, node_id: bytes) -> None:
        self.peer = Peer(address, TOKEN)
        self.up: asyncio.Queue[UpItem] = asyncio.Queue()
        self.down: list[DownItem] = []
        self.news = asyncio.Event()
        self.serving: Any = None
        self.stream: asyncio.Task[None] | None = None
        self.info = NodeInfo(
            node_id, "127.0.0.1", "host", "", "", "/s", CPUS_4, CPUS_4, {}, True,
            False, "", 1, VERSION,
        )  # fmt: skip

    async def listen(self) -> None:
        self.serving, port = await server.serve(
            [AgentServicer(self)], host="127.0.0.1", port=0, token=TOKEN
        )
        self.info = msgspec.structs.replace(self.info, agent=f"127.0.0.1:{port}")

    async def register(self, **versions: str) -> control.NodeRegistered:
        given = {"python": PYTHON, "sparkray": VERSION} | versions
        request = control.RegisterNode(self.info, **given)
        return await self.call("RegisterNode", request)

    async def call(self, method: str, request: Any) -> Any:
        calls = control.HEAD_CALLS | control.HEAD_AGENT_CALLS
        return await self.peer.call("Head", method, request, calls[method][1], 10)

    def connect(self) -> None:
        self.report(CPUS_4)
        self.stream = asyncio.ensure_future(self._read())

    def report(self, available: dict[str, int], demand: Any = ()) -> None:
        report = control.NodeReport(self.info.node_id, available, list(demand), 0)
        self.up.put_nowait(UpItem(report=report))

    async def disconnect(self) -> None:
        assert self.stream is not None
        self.stream.cancel()
        await asyncio.wait({self.stream})

    async def stop_listening(self) -> None:
        await self.serving.stop(0)

    async def told(self, what: Callable[[DownItem], Any], timeout_s: float = 5) -> Any:
        """Wait until an item for which ``what`` is true came down."""

        async def look() -> Any:
            while True:
                self.news.clear()
                for item in self.down:
                    if found := what(item):
                        return found
                await self.news.wait()

        return await asyncio.wait_for(look(), timeout_s)

    async def sees(self, *nodes: "Node", cpus: int = 4) -> None:
        wanted = {node.info.node_id: {"CPU": cpus * 10_000} for node in nodes}

        def newest(_: DownItem) -> bool:
            views = [item.view for item in self.down if item.view]
            return bool(views) and wanted == {
                node.node_id: node.available for node in views[-1].nodes
            }

        await self.told(newest)

    async def _read(self) -> None:
        async for item in self.peer.stream("Head", "Connect", self._items(), DownItem):
            self.down.append(item)
            self.news.set()

    async def _items(self) -> AsyncIterator[UpItem]:
        while True:
            yield await self.up.get()


class Stage:
    """A head and as many nodes as a test wants."""

    def __init__(self, address: str, head: HeadService) -> None:
        self.address = address
        self.head = head
        self.nodes: list[Node] = []

    async def node(self, *, joined: bool = True) -> Node:
        node = Node(self.address, b"node%d" % len(self.nodes))
        self.nodes.append(node)
        await node.listen()
        if joined:
            await node.register()
            node.connect()
            await node.told(lambda item: item.view)
        return node

    async def state(self, node: Node) -> NodeInfo:
        listed = await self.nodes[0].call("ListNodes", control.ListNodes())
        return next(n for n in listed.nodes if n.node_id == node.info.node_id)


Test = Callable[[Stage], Awaitable[None]]


def run(test: Test, node_timeout_s: float = 10.0) -> None:
    async def main() -> None:
        settings = Settings(node_timeout_s=node_timeout_s)
        head = HeadService(b"c" * 8, settings, TOKEN, VERSION)
        serving, port = await server.serve(
            [HeadServicer(head)], host="127.0.0.1", port=0, token=TOKEN
        )
        stage = Stage(f"127.0.0.1:{port}", head)
        head.start(stage.address)
        try:
            await asyncio.wait_for(test(stage), 40)
        finally:
            for node in stage.nodes:
                if node.stream is not None:
                    await node.disconnect()
                await node.stop_listening()
                await node.peer.close()
            await head.stop("the test is over")
            await serving.stop(0)

    asyncio.run(main())


def job_of(node: Node, job_id: bytes = b"job1") -> control.JobInfo:
    config = JobConfig("", [], "", True, "", [])
    return control.JobInfo(job_id, config, node.info.node_id, 1, True, 1.0, 0.0)


def gone(node: Node) -> Callable[[DownItem], str]:
    def reason(item: DownItem) -> str:
        is_it = item.gone is not None and item.gone.node_id == node.info.node_id
        return item.gone.reason if is_it and item.gone else ""

    return reason


def test_every_node_sees_all_nodes_and_what_is_free_on_them() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await one.sees(one, two)
        await two.sees(one, two)
        start = time.monotonic()
        for node in (one, two):
            node.report({"CPU": 10_000})
        await one.sees(one, two, cpus=1)
        assert time.monotonic() - start < 0.5

    run(test)


def test_a_hundred_reports_make_few_views() -> None:
    async def test(stage: Stage) -> None:
        one = await stage.node()
        for cpus in [*range(1, 4)] * 40:
            one.report({"CPU": cpus * 10_000})
        await one.sees(one, cpus=3)
        assert sum(item.view is not None for item in one.down) < 20

    run(test)


def test_a_node_whose_process_ended_is_dead_at_once() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        start = time.monotonic()
        await two.stop_listening()
        await two.disconnect()
        assert await one.told(gone(two)) == "its agent's process ended"
        assert time.monotonic() - start < 1.0
        await one.sees(one)
        assert not (await stage.state(two)).alive

    run(test)


def test_a_broken_stream_may_come_back_within_the_grace() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await two.disconnect()
        two.connect()
        with pytest.raises(asyncio.TimeoutError):
            await one.told(gone(two), timeout_s=RECONNECT_S + 1)
        assert (await stage.state(two)).alive

    run(test)


def test_a_broken_stream_that_stays_broken_is_a_death_after_the_grace() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        start = time.monotonic()
        await two.disconnect()
        assert "did not come back" in await one.told(gone(two))
        assert RECONNECT_S <= time.monotonic() - start < RECONNECT_S + 1

    run(test)


def test_a_silent_node_is_dead_after_the_timeout_and_is_told_so() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()

        async def reports() -> None:
            for number in range(1000):
                one.report({"CPU": number % 3 * 10_000})
                await asyncio.sleep(0.1)

        talking = asyncio.ensure_future(reports())
        assert "no report" in await one.told(gone(two))
        assert "no report" in await two.told(gone(two))
        assert two.stream is not None
        await asyncio.wait_for(asyncio.wait({two.stream}), 5)  # the head hangs up
        with pytest.raises(ProtocolError, match=r"declared dead.*start it anew"):
            await two.register()
        two.down.clear()
        two.connect()
        assert "no report" in await two.told(gone(two))
        talking.cancel()

    run(test, node_timeout_s=1.0)


def test_a_stream_of_a_node_that_never_registered_is_sent_away() -> None:
    async def test(stage: Stage) -> None:
        node = await stage.node(joined=False)
        node.connect()
        assert await node.told(gone(node)) == "it never registered"

    run(test)


@pytest.mark.parametrize(
    "versions", [{"python": "3.1.0"}, {"sparkray": "9.9"}], ids=["python", "sparkray"]
)
def test_a_node_of_another_version_is_refused(versions: dict[str, str]) -> None:
    async def test(stage: Stage) -> None:
        node = await stage.node(joined=False)
        with pytest.raises(ProtocolError) as caught:
            await node.register(**versions)
        for text in (*versions.values(), PYTHON, VERSION, "install"):
            assert text in str(caught.value)
        listed = await node.call("ListNodes", control.ListNodes())
        assert listed.nodes == []

    run(test)


def test_another_patch_of_python_is_one_warning() -> None:
    async def test(stage: Stage) -> None:
        node = await stage.node(joined=False)
        other = ".".join([*PYTHON.split(".")[:2], "99"])
        answer = await node.register(python=other)
        assert len(answer.warnings) == 1 and other in answer.warnings[0]
        assert (await node.register()).warnings == []

    run(test)


def test_the_end_of_a_job_is_told_to_all_nodes_once() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await one.call("AddJob", control.AddJob(job_of(one)))
        assert (await two.call("GetJob", control.GetJob(b"job1"))).alive
        for _ in range(2):
            await one.call("EndJob", control.JobEnded(b"job1"))
        for node in (one, two):
            await node.told(lambda item: item.job_ended)
            assert sum(item.job_ended is not None for item in node.down) == 1
        assert not (await two.call("GetJob", control.GetJob(b"job1"))).alive
        with pytest.raises(KeyError):
            await two.call("GetJob", control.GetJob(b"job2"))

    run(test)


def detached_actor(actor_id: bytes, **given: Any) -> actors.CreateActor:
    """One that waits for a GPU, which there is not, and uses a package."""
    package = environments.address_of("0" * 64 + ".zip")
    env = msgspec.json.encode({"working_dir": package}).decode()
    home = Address(b"w", b"node0", "", "", 0)
    creation = actors.ActorCreation(
        actor_id, b"", "Kept", b"", None, None, home, "kept", "space", {}, env, 0, 0,
        {}, {}, b"",
    )  # fmt: skip
    values: dict[str, Any] = {
        "actor_id": actor_id, "job_id": b"job1", "creator": home, "name": "kept",
        "namespace": "space", "get_if_exists": False, "detached": True,
        "max_restarts": 0, "spec": LeaseSpec(b"job1", env, {"GPU": 1}, Strategy(), 0),
        "creation": msgspec.msgpack.encode(creation), "handle": b"",
    }  # fmt: skip
    return actors.CreateActor(**(values | given))


def test_only_a_detached_actor_that_is_made_has_a_job_and_keeps_packages() -> None:
    async def test(stage: Stage) -> None:
        node = await stage.node()
        await node.call("AddJob", control.AddJob(job_of(node)))
        made = await node.call("CreateActor", detached_actor(b"a1"))
        again = await node.call("CreateActor", detached_actor(b"a1"))
        same = detached_actor(b"a2", get_if_exists=True)
        assert (await node.call("CreateActor", same)).actor_id == made.actor_id
        with pytest.raises(ValueError, match="lives in namespace"):
            await node.call("CreateActor", detached_actor(b"a3"))
        jobs = (await node.call("ListJobs", control.ListJobs())).jobs
        assert {job.job_id for job in jobs} == {b"job1", made.job_id}
        assert again.job_id == made.job_id
        uses = control.KVKeys(environments.NAMESPACE, b"")
        assert len((await node.call("KVKeys", uses)).keys) == 1
        await node.call("KillActor", actors.KillActor(b"a1", True, "enough"))
        await node.told(lambda item: item.job_ended)
        assert (await node.call("KVKeys", uses)).keys == []

    run(test)


def test_the_jobs_of_a_dead_nodes_drivers_end_with_it() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await two.call("AddJob", control.AddJob(job_of(two)))
        await two.stop_listening()
        await two.disconnect()
        ended = await one.told(lambda item: item.job_ended)
        assert ended.job_id == b"job1"

    run(test)


def test_log_lines_go_to_the_node_of_the_jobs_driver_only() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await one.call("AddJob", control.AddJob(job_of(one)))
        for job_id in (b"other", b"job1"):
            batch = control.LogBatch(job_id, "f", 1, "host", ["line"], False)
            two.up.put_nowait(UpItem(logs=batch))
        assert (await one.told(lambda item: item.logs)).job_id == b"job1"
        assert not any(item.logs for item in two.down)

    run(test)


def test_objects_are_asked_of_all_nodes_and_the_silent_are_named() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await two.stop_listening()
        answer = await one.call("ListObjects", control.ListObjects())
        assert [row.object_id for row in answer.rows] == [one.info.node_id]
        assert answer.store_used_bytes == {one.info.node_id.hex(): 1}
        [missing] = answer.missing
        assert two.info.node_id.hex()[:8] in missing

    run(test)


def test_status_tells_nodes_jobs_and_what_waits() -> None:
    async def test(stage: Stage) -> None:
        one = await stage.node()
        await one.call("AddJob", control.AddJob(job_of(one)))
        one.report({}, demand=[(CPUS_4, 2)])
        deadline = time.monotonic() + 5
        while not (status := await one.call("Status", control.ClusterStatus())).demand:
            assert time.monotonic() < deadline
        assert status.demand == [(CPUS_4, 2)]
        assert status.cluster_id == b"c" * 8
        assert status.head == stage.address
        assert [job.job_id for job in status.jobs] == [b"job1"]

    run(test)


def test_values_are_shared_by_all_nodes() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        first = await one.call("KVPut", control.KVPut("s", b"k", b"v", False))
        assert first.value is None
        assert (await two.call("KVGet", control.KVGet("s", b"k"))).value == b"v"
        assert (await two.call("KVKeys", control.KVKeys("s", b""))).keys == [b"k"]
        assert (await two.call("KVDelete", control.KVDelete("s", b"k"))).value == b"v"
        assert (await one.call("KVGet", control.KVGet("s", b"k"))).value is None

    run(test)


def test_one_node_can_be_told_to_end() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await one.call("Shutdown", control.Shutdown(two.info.node_id, True))
        await two.told(lambda item: item.shutdown)
        assert not any(item.shutdown for item in one.down)
        with pytest.raises(KeyError):
            await one.call("Shutdown", control.Shutdown(b"nobody", True))

    run(test)


def test_the_end_of_the_cluster_is_told_to_all_and_waits_until_they_left() -> None:
    async def test(stage: Stage) -> None:
        one, two = await stage.node(), await stage.node()
        await one.call("Shutdown", control.Shutdown(b"", True))
        assert "asked" in await asyncio.wait_for(stage.head.finished(), 5)
        stopping = asyncio.ensure_future(stage.head.stop("asked"))
        for node in (one, two):
            await node.told(lambda item: item.shutdown)
        await one.disconnect()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), 0.2)
        assert not stopping.done()
        await two.disconnect()
        await asyncio.wait_for(stopping, 1)

    run(test)
