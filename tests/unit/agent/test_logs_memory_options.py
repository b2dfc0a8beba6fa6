"""What is shown of logs, who is ended when memory is short, what a node has."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.agent.host import gpu_ids
from sparkray.agent.logs import (
    MAX_LINE_BYTES,
    LineSplitter,
    LogTailer,
    Printed,
    RateLimit,
    read_tail,
)
from sparkray.agent.memory import Candidate, MemoryMonitor, choose
from sparkray.agent.options import AgentOptions, labels_of, total_resources
from sparkray.agent.processes import describe_exit, environment_of
from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.resources import UNIT

TEXT = b"one\n\x01task:f\ntwo\nthree\n\x01task:g\nfour"
NAMED = [("", "one"), ("f", "two"), ("f", "three"), ("g", "four")]


@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_lines_and_names_survive_any_cut_of_the_stream(cuts: list[int]) -> None:
    splitter = LineSplitter()
    edges = [0, *sorted(cuts), len(TEXT)]
    seen = []
    for start, end in itertools.pairwise(edges):
        seen += splitter.feed(TEXT[start:end])
    assert seen + splitter.feed(b"", last=True) == NAMED


def test_an_unfinished_line_before_a_marker_is_shown_under_the_old_name() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\x01task:f\n")
    assert splitter.feed(b"no newline\x01task:g\nx\n") == [
        ("f", "no newline"),
        ("g", "x"),
    ]


def test_an_empty_line_is_a_line() -> None:
    assert LineSplitter().feed(b"a\n\nb\n") == [("", "a"), ("", ""), ("", "b")]


def test_a_line_without_end_is_cut_and_not_kept_in_memory() -> None:
    splitter = LineSplitter()
    shown = splitter.feed(b"x" * (3 * MAX_LINE_BYTES))
    assert [len(line) for _, line in shown] == [MAX_LINE_BYTES] * 3


def test_bytes_that_are_no_text_are_shown_somehow() -> None:
    assert LineSplitter().feed(b"\xff\xfe\n")[0][1]


def test_a_flood_is_dropped_with_one_notice_until_it_ends() -> None:
    limit = RateLimit(1000)
    assert limit.take(900, 100.0) == (True, False)
    assert limit.take(900, 100.1) == (False, True)
    assert limit.take(900, 100.2) == (False, False)
    assert limit.take(900, 102.0) == (True, False)


def test_one_read_above_the_limit_passes_when_it_was_quiet_before() -> None:
    assert RateLimit(1000).take(5000, 100.0) == (True, False)


def test_files_are_followed_and_the_rest_is_shown_at_the_end(tmp_path: Path) -> None:
    out, err = tmp_path / "w.out", tmp_path / "w.err"
    out.write_bytes(b"\x01task:f\nfirst\n")
    err.write_bytes(b"")
    printed: list[Printed] = []

    async def run() -> None:
        tailer = LogTailer(printed.append)
        tailer.follow(b"w", b"job", 7, (str(out), str(err)), True)
        tailer.flush()
        with out.open("ab") as file:
            file.write(b"last without newline")
        err.write_bytes(b"oops\n")
        tailer.ended(b"w")
        tailer.close()

    asyncio.run(run())
    assert [(p.name, p.lines, p.is_stderr) for p in printed] == [
        ("f", ["first"], False),
        ("f", ["last without newline"], False),
        ("", ["oops"], True),
    ]


def test_files_of_workers_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    async def run() -> None:
        tailer = LogTailer(lambda printed: None)
        for number in range(60):
            paths = [tmp_path / f"{number}.{kind}" for kind in ("out", "err")]
            for path in paths:
                path.write_bytes(b"x\n")
            worker_id = b"%d" % number
            tailer.follow(worker_id, b"j", 1, (str(paths[0]), str(paths[1])), False)
            tailer.ended(worker_id)

    asyncio.run(run())
    assert len(list(tmp_path.iterdir())) == 100
    assert not (tmp_path / "0.out").exists()


def test_the_tail_of_a_log_has_no_markers(tmp_path: Path) -> None:
    path = tmp_path / "w.err"
    path.write_bytes(b"\x01task:f\n" + b"".join(b"line %d\n" % n for n in range(50)))
    assert read_tail(str(path)).splitlines() == [f"line {n}" for n in range(30, 50)]
    assert read_tail(str(tmp_path / "none")) == ""


NEW = Candidate(b"new", 20.0, 1 << 20)
OLD = Candidate(b"old", 10.0, 1 << 30)


def test_the_newest_task_is_ended_when_memory_is_short() -> None:
    assert choose(0.96, 0.95, [OLD, NEW]) is NEW
    assert choose(0.95, 0.95, [OLD, NEW]) is None
    assert choose(0.99, 0.95, []) is None


def candidate(name: str, since: float, holder: str, *, retriable: bool) -> Candidate:
    return Candidate(name.encode(), since, 0, holder.encode(), retriable)


def test_what_cannot_run_again_is_ended_last_and_who_has_most_loses_first() -> None:
    precious = candidate("precious", 99, "a", retriable=False)
    alone = candidate("alone", 30, "a", retriable=True)
    many = [candidate(f"many{n}", 10 + n, "b", retriable=True) for n in range(3)]
    left, ended = [precious, alone, *many], []
    while left:
        victim = choose(1.0, 0.9, left)
        assert victim is not None
        left.remove(victim)
        ended.append(victim.worker_id.decode())
    assert ended == ["many2", "many1", "alone", "many0", "precious"]


def test_the_monitor_says_how_full_memory_was() -> None:
    killed: list[tuple[bytes, str]] = []

    async def run() -> None:
        monitor = MemoryMonitor(
            0.9,
            lambda: [OLD, NEW],
            lambda worker_id, reason: killed.append((worker_id, reason)),
            lambda: 0.97,
        )
        task = asyncio.ensure_future(monitor.run())
        while not killed:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    worker_id, reason = killed[0]
    assert worker_id == b"new"
    assert "97.0%" in reason and "90%" in reason and "1 MiB" in reason


def options(**more: object) -> AgentOptions:
    fields: dict[str, object] = {
        "cluster_id": b"c",
        "node_id": b"n",
        "host": "h",
        "session_dir": "/s",
        "segment_dir": "/g",
        "log_dir": "/l",
        "token_file": "/t",
    }
    return AgentOptions(**{**fields, **more})  # type: ignore[arg-type]


def test_a_node_has_cpus_memory_store_itself_and_what_it_was_given() -> None:
    total = total_resources(
        options(resources={"tok": 2.5}), cpus=4, memory_bytes=1000, store_bytes=300
    )
    assert total == {
        "CPU": 4 * UNIT,
        "memory": 700 * UNIT,
        "object_store_memory": 300 * UNIT,
        "node:h": UNIT,
        "tok": 25_000,
    }


def test_gpus_are_those_of_the_host_unless_their_number_is_given() -> None:
    def gpus(**given: Any) -> int:
        chosen = options(gpu_ids=["2", "3"], **given)
        total = total_resources(chosen, cpus=1, memory_bytes=10, store_bytes=10)
        return total.get("GPU", 0)

    assert gpus() == 2 * UNIT
    assert gpus(resources={"GPU": 1}) == UNIT
    assert gpus(resources={"GPU": 0}) == 0
    assert gpus(resources={"GPU": 8}) == 8 * UNIT


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 1 ", ["3", "1"]),
        ("GPU-8932f937,MIG-42", ["GPU-8932f937", "MIG-42"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", ["1"]),
        ("0,0, 1,0", ["0", "1"]),
    ],
)
def test_the_environment_says_which_gpus_there_are(
    visible: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "nvidia0").touch()
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == expected


def test_without_a_word_of_the_environment_device_files_are_counted(
    tmp_path: Path,
) -> None:
    assert gpu_ids({}, tmp_path) == []
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpu_ids({}, tmp_path) == ["0", "1", "2"]  # as CUDA numbers what it finds


def test_the_only_gpu_of_a_container_is_its_first(tmp_path: Path) -> None:
    (tmp_path / "nvidia3").touch()
    assert gpu_ids({}, tmp_path) == ["0"]


def test_every_node_is_labelled_with_its_id() -> None:
    given = options(labels={"zone": "a"})
    node_id = given.node_id.hex()
    assert labels_of(given) == {"zone": "a", "sparkray.io/node-id": node_id}


def test_the_number_of_cpus_can_be_given_even_as_zero() -> None:
    total = total_resources(
        options(num_cpus=0), cpus=4, memory_bytes=1000, store_bytes=300
    )
    assert "CPU" not in total


def test_variables_of_a_runtime_environment_win_and_the_token_is_left_out() -> None:
    base = {"PATH": "/bin", "A": "0", "SPARKRAY_TOKEN": "secret"}
    environment = environment_of('{"env_vars":{"A":"1"}}', base, "/token")
    assert environment == {
        "PATH": "/bin",
        "A": "1",
        "OMP_NUM_THREADS": "1",
        "SPARKRAY_OMP_FOLLOWS_CPUS": "1",
        "SPARKRAY_TOKEN_FILE": "/token",
    }
    assert environment_of("", {"OMP_NUM_THREADS": "8"}, "")["OMP_NUM_THREADS"] == "8"


def test_a_variable_may_refer_to_those_of_the_node() -> None:
    env = '{"env_vars":{"PATH":"/x:${PATH}","A":"[${MISSING}$HOME]"}}'
    environment = environment_of(env, {"PATH": "/bin", "HOME": "/h"}, "")
    assert (environment["PATH"], environment["A"]) == ("/x:/bin", "[$HOME]")


@pytest.mark.parametrize("given", ["/mine", "/mine:${PYTHONPATH}"])
def test_workers_find_sparkray_whatever_their_import_path_says(given: str) -> None:
    env = f'{{"env_vars":{{"PYTHONPATH":"{given}"}}}}'
    environment = environment_of(env, {"PYTHONPATH": "/place:/other"}, "")
    assert environment["PYTHONPATH"] == "/mine:/place:/other"


@pytest.mark.parametrize("env", ['{"conda":"x"}', "no json", "[]"])
def test_a_runtime_environment_that_is_not_understood_is_an_error(env: str) -> None:
    with pytest.raises(RuntimeEnvSetupError):
        environment_of(env, {}, "")


def test_the_end_of_a_process_is_told_in_words() -> None:
    assert describe_exit(3, 7, "h") == ("exit", "process 7 on h exited with code 3")
    assert describe_exit(-9, 7, "h") == (
        "signal",
        "process 7 on h was ended by SIGKILL",
    )
