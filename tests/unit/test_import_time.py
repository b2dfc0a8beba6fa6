"""What ``import sparkray`` must not do.  A process of its own, for imports stick.

The time is printed (``pytest -s``) and not asserted: it is the machine's as much as
ours.  What it depends on is asserted: the modules that are loaded.
"""

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

HEAVY = {"grpc", "numpy", "pandas", "pyarrow", "pyspark", "psutil", "click"}
HEAVY |= {"asyncio", "multiprocessing", "ssl", "sqlite3", "http", "matplotlib"}

PROBE = """
import json, sys, threading, time
begin = time.perf_counter()
{code}
took_s = time.perf_counter() - begin
print(json.dumps({{
    "took_s": took_s,
    "modules": sorted({{name.partition(".")[0] for name in sys.modules}}),
    "threads": threading.active_count(),
}}))
"""


@dataclass(frozen=True)
class Probe:
    took_s: float
    modules: list[str]  #: top-level names
    threads: int


@functools.cache
def _probe(code: str, run: int = 0) -> Probe:
    out = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code)],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )
    return Probe(**json.loads(out.stdout))


def test_importing_sparkray_loads_nothing_heavy_and_starts_no_thread() -> None:
    runs = [_probe("import sparkray", run) for run in range(3)]
    took_s = min(run.took_s for run in runs)
    print(f"import sparkray: {1000 * took_s:.1f} ms, best of {len(runs)}")
    assert not HEAVY & set(runs[0].modules)
    assert runs[0].threads == 1


@pytest.mark.parametrize("heavy", ["grpc", "numpy", "pandas", "pyarrow", "pyspark"])
def test_declaring_a_task_needs_nothing_heavy(heavy: str) -> None:
    code = "import sparkray\n@sparkray.remote(num_cpus=2)\ndef f(x): return x"
    assert heavy not in _probe(code).modules


def test_loading_every_public_name_still_needs_no_grpc() -> None:
    code = "import sparkray\nfor name in sparkray.__all__: getattr(sparkray, name)"
    assert "grpc" not in _probe(code).modules, "a runtime never loads grpc"
