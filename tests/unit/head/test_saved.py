"""What the head keeps: tables -> rows -> tables are equal, whatever happened before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkray.exceptions import ProtocolError
from sparkray.head.state import actors as actor_state
from sparkray.head.state import resuming, saved
from sparkray.head.state.nodes import Gone, NodeState
from sparkray.head.state.saved import Row, Tables
from sparkray.protocol import actors as a
from sparkray.protocol import placement as g
from sparkray.protocol.control import JobInfo
from sparkray.protocol.messages import Address, JobConfig, LeaseSpec, Strategy
from tests.unit.head.test_nodes import info

IDS = st.sampled_from([b"1", b"2", b"3"])
NAMES = st.sampled_from(["", "x", "y"])
BOOLS = st.booleans()


def empty() -> Tables:
    return Tables.empty(10.0, 2.0)


def job(job_id: bytes, node_id: bytes) -> JobInfo:
    config = JobConfig("", [], "", True, "", [])
    return JobInfo(job_id, config, node_id, 1, True, 1.0, 0.0)


def actor_request(
    actor_id: bytes, job_id: bytes, name: str, detached: bool, node_id: bytes = b"1"
) -> a.CreateActor:
    spec = LeaseSpec(job_id, "", {"CPU": 1}, Strategy(), 0)
    creator = Address(b"creator", node_id, "", "h", 1)
    return a.CreateActor(
        actor_id, job_id, creator, name, "ns", True, detached, 1, spec, b"made", b"h"
    )


def group_request(group_id: bytes, job_id: bytes) -> g.CreatePlacementGroup:
    bundles = [{"CPU": 1}, {"CPU": 2}]
    return g.CreatePlacementGroup(group_id, job_id, "", "ns", g.PACK, bundles, False)


def rows_of(tables: Tables) -> dict[tuple[str, bytes], Any]:
    """Return what is known, decoded, with all that is to be kept."""
    rows: dict[tuple[str, bytes], Any] = {}
    for node in tables.nodes.all():
        free = msgspec.structs.replace(node, available={}, lent={})
        rows["node", node.node_id] = free
    for each in tables.jobs.all():
        rows["job", each.job_id] = each
    for namespace, key in tables.kv.all_keys():
        rows[namespace, key] = tables.kv.get(namespace, key)
    for actor in tables.actors.actors.values():
        fields = [getattr(actor, f) for f in saved._SavedActor.__struct_fields__]
        rows["actor", actor.request.actor_id] = (actor.request, fields, actor.row())
    for group in tables.groups.groups.values():
        rows["group", group.request.group_id] = (group.row(), group.attempts)
    rows["names", b""] = (tables.actors._names, tables.groups._names)
    return rows


class Disk:
    """What a storage would hold."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], bytes] = {}

    def write(self, rows: list[Row]) -> None:
        for kind, key, body in rows:
            if body is None:
                self.rows.pop((kind, key), None)
            else:
                self.rows[kind, key] = body

    def read(self, starts: int = 2) -> Tables:
        tables = empty()
        rows = [Row(*key, body) for key, body in self.rows.items()]
        saved.restore(tables, rows, 0.0, starts)
        return tables


def step(tables: Tables, draw: Any) -> None:
    one, two = draw(IDS), draw(IDS)
    match draw(st.integers(0, 12)):
        case 0:
            if tables.nodes.state(one) is not NodeState.DEAD:
                tables.nodes.register(info(one), 0.0)
        case 1:
            tables.nodes.handle(one, Gone("it ended"))
        case 2:
            tables.jobs.add(job(one, two))
        case 3:
            tables.jobs.end(one, draw(st.floats(1, 9)))
        case 4:
            value, over = draw(st.binary(max_size=3)), draw(BOOLS)
            tables.kv.put(draw(NAMES), one, value, overwrite=over)
        case 5:
            tables.kv.delete(draw(NAMES), one)
        case 6:
            request = actor_request(one, two, draw(NAMES), draw(BOOLS))
            tables.actors.create(request, "Class")
        case 7 if one in tables.actors.actors:
            actor = tables.actors.actors[one]
            tables.actors.placed(actor, actor.incarnation, two, b"w", b"l")
        case 8 if one in tables.actors.actors:
            inc, kind = tables.actors.actors[one].incarnation, draw(BOOLS)
            address = Address(b"w", two, "", "h", 1)
            news = ("alive", address) if kind else ("signal", None)
            tables.actors.news(a.ActorNews(one, inc, *news, "why", b"", 7))
        case 9:
            tables.actors.kill(one, "killed", no_restart=draw(BOOLS))
        case 10:
            tables.groups.create(group_request(one, two))
        case 11 if one in tables.groups.groups:
            group = tables.groups.groups[one]
            places = dict.fromkeys(group.missing(), two)
            tables.groups.placed(group, tables.groups.next_attempt(), places, {two})
        case 12:
            tables.groups.node_gone(one)
            tables.groups.remove(two, "removed")


@given(st.data())
@settings(max_examples=200)
def test_tables_are_equal_after_they_were_written_and_read(data: st.DataObject) -> None:
    tables, disk = empty(), Disk()
    for _ in range(data.draw(st.integers(1, 30))):
        step(tables, data.draw)
        if data.draw(BOOLS):
            disk.write(saved.changes(tables))
    disk.write(saved.changes(tables))
    read = disk.read()
    assert rows_of(read) == rows_of(tables)
    assert saved.changes(read) == []


def test_only_what_changed_is_written() -> None:
    tables = empty()
    tables.kv.put("ns", b"k", b"v", overwrite=True)
    tables.actors.create(actor_request(b"1", b"j", "", False), "Class")
    assert [r.kind for r in saved.changes(tables)] == ["kv", "actor", "creation"]
    assert saved.changes(tables) == []
    tables.actors.placed(tables.actors.actors[b"1"], 1, b"n", b"w", b"l")
    assert [row.kind for row in saved.changes(tables)] == ["actor"]


def test_a_row_that_cannot_be_decoded_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        saved.restore(empty(), [Row("job", b"1", b"\xc1")], 0.0, 1)


def test_actors_that_were_being_made_go_on() -> None:
    tables, disk = empty(), Disk()
    for actor_id in (b"1", b"2", b"3"):
        request = actor_request(actor_id, b"j", "", False)
        actor, _ = tables.actors.create(request, "Class")
        if actor_id != b"1":
            tables.actors.placed(actor, 1, b"n", b"w" + actor_id, b"l")
    tables.actors.news(a.ActorNews(b"3", 1, "alive", None, "", b"", 1))
    disk.write(saved.changes(tables))
    read = disk.read().actors
    first, second = read.actors[b"1"], read.actors[b"2"]
    effects = read.resume()
    assert len(effects) == 2 and actor_state.Place(first, 1) in effects
    assert actor_state.Begin(second, 1) in effects


def test_a_new_head_frees_what_an_earlier_one_was_reserving() -> None:
    tables, disk = empty(), Disk()
    tables.groups.create(group_request(b"1", b"j"))
    late = tables.groups.next_attempt()
    disk.write(saved.changes(tables))
    groups = disk.read().groups
    (effect,) = groups.resume([b"n"])
    assert (effect.node_id, effect.indexes) == (b"n", (0, 1))  # type: ignore[union-attr]
    assert late < effect.attempt < groups.next_attempt()  # type: ignore[union-attr]


def test_what_hangs_on_something_that_has_ended_is_found() -> None:
    tables = empty()
    tables.nodes.register(info(b"1"), 0.0)
    tables.nodes.register(info(b"2"), 0.0)
    for job_id, node_id in ((b"a", b"1"), (b"b", b"2"), (b"c", b"1"), (b"d", b"")):
        tables.jobs.add(job(job_id, node_id))
    make = tables.actors.create
    make(actor_request(b"1", b"a", "", False), "Class")
    make(actor_request(b"2", b"d", "", True), "Class")
    tables.nodes.handle(b"2", Gone("it fell"))
    tables.jobs.end(b"a", 1.0)
    tables.jobs.end(b"c", 1.0)
    tables.actors.kill(b"2", "killed", no_restart=True)
    assert resuming.lost_nodes(tables) == [(b"2", "it fell")]
    assert resuming.ended_jobs(tables) == [b"a"]
    assert resuming.unfinished_jobs(tables) == [b"d"]
