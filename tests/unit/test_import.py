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


def test_the_parts_of_util_need_no_import_of_their_own() -> None:
    code = (
        "import sparkray; from pathlib import Path;"
        "util = sparkray.util;"
        "parts = {p.stem for p in Path(util.__file__).parent.glob('[a-z]*.py')};"
        "parts -= {'joblib', 'deadlines'};"
        "assert parts <= set(dir(util));"
        "[getattr(util, part) for part in parts];"
        "assert util.ActorPool.__name__ == 'ActorPool';"
        "print(hasattr(util, 'no_such_name'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("False\n", "")
