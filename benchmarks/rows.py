"""The rows of the table, and the process that measures them for one peer.

    python rows.py PEER --rows a,b --workers 5 --budget 10 --out FILE

Each row is a function of a started peer.  A row that would take a peer longer than the
budget is run with fewer tasks and scaled up; the result says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil

from peers import PACKAGES, NotOffered, Peer, load
from tasks import empty, process_id, sleep

ARRAY_BYTES = 100_000_000
PROBE_FRACTION = 20  #: a probe is this part of a row


@dataclass(frozen=True)
class Value:
    """One measurement.  ``scaled``: of fewer tasks than the row asks for."""

    value: float
    scaled: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table; smaller values are better in all of them."""

    name: str
    title: str
    unit: str
    measure: Callable[[Peer, int, float], Value]


def _timed(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _bounded(run: Callable[[int], Any], count: int, budget_s: float) -> Value:
    """Time ``run(count)``, or less of it where a probe says that it takes too long."""
    probe = max(1, count // PROBE_FRACTION)
    expected_s = _timed(lambda: run(probe)) * count / probe
    if expected_s > budget_s:
        fewer = max(probe, int(count * budget_s / expected_s))
        return Value(_timed(lambda: run(fewer)) * count / fewer, scaled=True)
    return Value(_timed(lambda: run(count)))


def _pipelined(peer: Peer, workers: int, budget_s: float) -> Value:
    peer.run(empty, [()] * 20 * workers)
    return _bounded(lambda count: peer.run(empty, [()] * count), 10_000, budget_s)


def _one_by_one(peer: Peer, workers: int, budget_s: float) -> Value:
    def run(count: int) -> None:
        for _ in range(count):
            peer.one(empty)

    run(20)
    total = _bounded(run, 1_000, budget_s)
    return Value(total.value / 1_000, total.scaled)


def _nested(peer: Peer, workers: int, budget_s: float) -> Value:
    peer.nested(1, 5)
    return _bounded(lambda outer: peer.nested(outer, 50), 20, budget_s)


def _calls(peer: Peer, workers: int, budget_s: float) -> Value:
    (actor,) = peer.actors(1)
    peer.call(actor, 500)
    return _bounded(lambda count: peer.call(actor, count), 10_000, budget_s)


def _call_one_by_one(peer: Peer, workers: int, budget_s: float) -> Value:
    (actor,) = peer.actors(1)

    def run(count: int) -> None:
        for _ in range(count):
            peer.call(actor, 1)

    run(20)
    total = _bounded(run, 1_000, budget_s)
    return Value(total.value / 1_000, total.scaled)


def _creation(peer: Peer, workers: int, budget_s: float) -> Value:
    """Make all at once; each is a process of its own."""
    peer.actors(workers)
    return _bounded(peer.actors, 100, budget_s)


def _sleeping(task_s: float) -> Callable[[Peer, int, float], Value]:
    """One second of ideal time, in tasks of this length."""

    def measure(peer: Peer, workers: int, budget_s: float) -> Value:
        peer.run(sleep, [(0.01,)] * workers)
        count = round(workers / task_s)
        if count == workers:
            return Value(_timed(lambda: peer.run(sleep, [(task_s,)] * count)))
        return _bounded(lambda n: peer.run(sleep, [(task_s,)] * n), count, budget_s)

    return measure


def _put(peer: Peer, workers: int, budget_s: float) -> Value:
    array = np.random.default_rng(0).random(ARRAY_BYTES // 8)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        reference = peer.put(array)
        times.append(time.perf_counter() - begin)
        del reference
        time.sleep(0.05)  # frees travel while nobody waits for them
    return Value(statistics.median(times[4:]))


def _get(peer: Peer, workers: int, budget_s: float) -> Value:
    """Get an object that this process has not read before, and read one number."""
    array = np.random.default_rng(0).random(ARRAY_BYTES // 8)
    times = []
    for _ in range(6):
        reference = peer.put(array)
        times.append(_timed(lambda r=reference: float(peer.get(r)[-1])))
        del reference
        time.sleep(0.05)
    return Value(statistics.median(times[2:]))


def _grid_search(peer: Peer, workers: int, budget_s: float) -> Value:
    """45 fits of a support vector machine to the digits, and one to all of them."""
    backend = peer.joblib_backend()
    if importlib.util.find_spec("sklearn") is None:
        raise NotOffered
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_digits(return_X_y=True)
    grid = {"C": [0.1, 1.0, 10.0], "gamma": [1e-4, 1e-3, 1e-2]}
    search = GridSearchCV(SVC(), grid, cv=5)
    with joblib.parallel_config(backend, n_jobs=workers):
        GridSearchCV(SVC(), {"C": range(1, 1 + workers)}, cv=2).fit(x[:200], y[:200])
        return Value(_timed(lambda: search.fit(x, y)))


def _worker_memory(peer: Peer, workers: int, budget_s: float) -> Value:
    """Memory that an idle worker shares with no other process, in MiB."""
    pids = set(peer.run(process_id, [(0.2,)] * 2 * workers))
    own = [psutil.Process(pid).memory_full_info().uss for pid in pids]
    return Value(statistics.median(own) / 2**20)


def _started_before(peer: Peer, workers: int, budget_s: float) -> Value:
    raise AssertionError("measured by the process itself, around the start")


def import_time(package: str) -> Value:
    code = (
        f"import time; t = time.perf_counter(); import {package};"
        " print(time.perf_counter() - t)"
    )
    times = []
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        times.append(float(out.stdout.split()[-1]))
    return Value(min(times))


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("init", "init to first result", "s", _started_before),
        Row("import", "import", "s", _started_before),
        Row("memory", "own memory of an idle worker", "MiB", _worker_memory),
        Row("pipelined", "10,000 empty tasks", "s", _pipelined),
        Row("one-by-one", "empty task, one by one", "s", _one_by_one),
        Row("calls", "10,000 calls of an actor", "s", _calls),
        Row("call-one-by-one", "call of an actor, one by one", "s", _call_one_by_one),
        Row("actors", "100 actors, until each answers", "s", _creation),
        Row("nested", "20 tasks that run 50 each", "s", _nested),
        Row("1s", "5 tasks of 1 s", "s", _sleeping(1.0)),
        Row("100ms", "50 tasks of 100 ms", "s", _sleeping(0.1)),
        Row("10ms", "500 tasks of 10 ms", "s", _sleeping(0.01)),
        Row("1ms", "5,000 tasks of 1 ms", "s", _sleeping(0.001)),
        Row("put", "put of 100 MB", "s", _put),
        Row("get", "get of 100 MB", "s", _get),
        Row("grid-search", "GridSearchCV digits", "s", _grid_search),
    )
}


def measure(
    name: str, rows: Sequence[str], workers: int, budget_s: float
) -> dict[str, Any]:
    """Return row -> value, or row -> error text, of one life of a peer."""
    results: dict[str, Any] = {}
    peer = load(name)
    begin = time.perf_counter()
    peer.start(workers)
    try:
        peer.one(empty)
        results["init"] = asdict(Value(time.perf_counter() - begin))
        if "import" in rows:
            results["import"] = asdict(import_time(PACKAGES[name][0]))
        for row in (ROWS[row] for row in rows if row not in ("init", "import")):
            with contextlib.suppress(NotOffered):
                results[row.name] = _attempt(row, peer, workers, budget_s)
    finally:
        peer.stop()
    return {row: results[row] for row in rows if row in results}


def _attempt(row: Row, peer: Peer, workers: int, budget_s: float) -> dict[str, Any]:
    try:
        return asdict(row.measure(peer, workers, budget_s))
    except NotOffered:
        raise
    except Exception as error:  # one row of one peer must not cost the whole table
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("--rows", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    rows = options.rows.split(",")
    results = measure(options.peer, rows, options.workers, options.budget)
    with open(options.out, "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
