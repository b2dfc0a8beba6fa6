import subprocess
import sys

import pytest

import sparkray

HEAVY = {"grpc", "numpy", "pandas", "pyarrow", "pyspark", "cloudpickle", "asyncio"}


def test_importing_the_package_loads_nothing_heavy_and_starts_no_thread() -> None:
    code = (
        "import sys, threading, sparkray;"
        "print(threading.active_count(), *{n.split('.')[0] for n in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    threads, *modules = run.stdout.split()
    assert threads == "1" and not HEAVY & set(modules)


def test_every_public_name_is_there_and_listed() -> None:
    for name in sparkray.__all__:
        assert getattr(sparkray, name) is not None
        assert name in dir(sparkray)
    with pytest.raises(AttributeError, match="no_such_name"):
        sparkray.no_such_name  # noqa: B018
