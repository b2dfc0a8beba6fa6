import pytest

from sparkray.head.state import packages
from sparkray.head.state.jobs import MAX_ENDED, JobTable
from sparkray.head.state.kv import KVTable
from sparkray.protocol.control import JobInfo
from sparkray.protocol.environments import NAMESPACE, use_key
from sparkray.protocol.messages import JobConfig

CONFIG = JobConfig("", [], "", True, "", [])


def job(job_id: bytes, node: bytes = b"n1") -> JobInfo:
    return JobInfo(job_id, CONFIG, node, 1, True, 10.0, 0.0)


def test_a_job_ends_once_and_stays_ended() -> None:
    jobs = JobTable()
    jobs.add(job(b"j1"))
    assert jobs.end(b"j1", 20.0)
    assert not jobs.end(b"j1", 30.0)
    jobs.add(job(b"j1"))  # an agent that repeats itself
    assert not jobs.get(b"j1").alive
    assert jobs.get(b"j1").end_unix_s == 20.0


def test_a_job_that_nobody_knows_is_named() -> None:
    with pytest.raises(KeyError, match="00ff"):
        JobTable().get(b"\x00\xff")
    assert not JobTable().end(b"\x00\xff", 1.0)


def test_the_jobs_of_a_node_are_those_that_run() -> None:
    jobs = JobTable()
    jobs.add(job(b"j1"))
    jobs.add(job(b"j2", b"n2"))
    jobs.add(job(b"j3"))
    jobs.end(b"j1", 20.0)
    assert jobs.of_node(b"n1") == [b"j3"]


def test_only_so_many_ended_jobs_are_remembered_but_all_that_run() -> None:
    jobs = JobTable()
    jobs.add(job(b"first"))
    for number in range(MAX_ENDED + 10):
        jobs.add(job(b"%d" % number))
        jobs.end(b"%d" % number, 1.0)
    assert len(jobs.all()) == MAX_ENDED + 1
    assert jobs.get(b"first").alive


def test_values_are_kept_by_namespace_and_key() -> None:
    kv = KVTable()
    assert kv.put("a", b"k", b"1", overwrite=False) is None
    assert kv.put("b", b"k", b"2", overwrite=False) is None
    assert (kv.get("a", b"k"), kv.get("b", b"k"), kv.get("c", b"k")) == (
        b"1",
        b"2",
        None,
    )


def test_a_value_is_only_replaced_when_asked_to() -> None:
    kv = KVTable()
    kv.put("", b"k", b"1", overwrite=False)
    assert kv.put("", b"k", b"2", overwrite=False) == b"1"
    assert kv.get("", b"k") == b"1"
    assert kv.put("", b"k", b"2", overwrite=True) == b"1"
    assert kv.get("", b"k") == b"2"


def test_an_empty_value_counts_as_there() -> None:
    kv = KVTable()
    kv.put("", b"k", b"", overwrite=False)
    assert kv.put("", b"k", b"x", overwrite=False) == b""
    assert kv.get("", b"k") == b""


def test_keys_are_found_by_prefix_and_deleted_once() -> None:
    kv = KVTable()
    for key in (b"ab", b"aa", b"b"):
        kv.put("", key, b"", overwrite=True)
    assert kv.keys("", b"a") == [b"aa", b"ab"]
    assert kv.delete("", b"aa") == b""
    assert kv.delete("", b"aa") is None
    assert kv.keys("", b"") == [b"ab", b"b"]
    assert kv.keys("other", b"") == []


def test_a_package_stays_until_the_last_job_that_uses_it_has_ended() -> None:
    name, other = f"{1:064x}.zip", f"{2:064x}.whl"
    kv, alive = KVTable(), {b"a", b"b"}
    for key in (name, f"{name}/0", other, f"{other}/0"):
        kv.put(NAMESPACE, key.encode(), b"x", overwrite=True)
    kv.put(NAMESPACE, use_key(name, b"a"), b"", overwrite=True)
    packages.note_use(kv, b"b", f'{{"working_dir":"package:{name}"}}', "")
    kv.put(NAMESPACE, use_key(other, b"a"), b"", overwrite=True)
    kv.put("elsewhere", b"k", b"x", overwrite=True)
    packages.drop_unused(kv, alive.__contains__)
    assert len(kv.keys(NAMESPACE, b"")) == 7
    alive.remove(b"a")
    packages.drop_unused(kv, alive.__contains__)
    kept = [name.encode(), f"{name}/0".encode(), use_key(name, b"b")]
    assert kv.keys(NAMESPACE, b"") == kept
    alive.clear()
    packages.drop_unused(kv, alive.__contains__)
    assert kv.keys(NAMESPACE, b"") == [] and kv.keys("elsewhere", b"") == [b"k"]
