import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

import joblib
import pytest

import sparkray
from sparkray.compat.ray.util.joblib import register_ray
from sparkray.util.joblib import register_sparkray
from sparkray.util.state import list_objects
from tests.support import Tally, driver_environment, until

pytestmark = pytest.mark.usefixtures("shared")
register_sparkray()


def where(x: int) -> tuple[int, int]:
    return x, os.getpid()


def test_calls_run_in_the_cluster_in_order() -> None:
    with joblib.parallel_config("sparkray"):
        got = joblib.Parallel()(joblib.delayed(where)(i) for i in range(40))
    assert [x for x, _ in got] == list(range(40))
    assert os.getpid() not in {pid for _, pid in got}


def test_all_jobs_means_all_cpus_of_the_cluster() -> None:
    with joblib.parallel_config("sparkray", n_jobs=-1):
        assert joblib.effective_n_jobs() == 4
        assert joblib.effective_n_jobs(-2) == 3
        assert joblib.effective_n_jobs(7) == 7
    with (
        joblib.parallel_config("sparkray", n_jobs=0),
        pytest.raises(ValueError, match="n_jobs"),
    ):
        joblib.Parallel()([joblib.delayed(abs)(1)])


def test_an_error_reaches_the_caller_and_stops_the_rest(tmp_path: Any) -> None:
    tally = Tally(tmp_path)

    def work(i: int) -> int:
        tally.add(i)
        if i == 1:
            raise KeyError("one")
        time.sleep(0.05)
        return i

    with joblib.parallel_config("sparkray", n_jobs=2):
        with pytest.raises(KeyError):
            joblib.Parallel(pre_dispatch="all", batch_size=1)(
                joblib.delayed(work)(i) for i in range(200)
            )
        assert tally.count() < 100
        assert joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(3)) == [0, 1, 2]


def test_parallel_inside_of_a_task_makes_tasks() -> None:
    def inner(x: int) -> tuple[int, int]:
        time.sleep(0.05)
        return x * x, os.getpid()

    def outer(n: int) -> tuple[int, bool]:
        got = joblib.Parallel(n_jobs=2)(joblib.delayed(inner)(i) for i in range(n))
        return sum(x for x, _ in got), os.getpid() in {pid for _, pid in got}

    with joblib.parallel_config("sparkray", n_jobs=-1):
        got = joblib.Parallel()(joblib.delayed(outer)(4) for _ in range(8))
    assert got == [(14, False)] * 8


def test_parallel_without_a_number_runs_in_line_inside_of_a_task() -> None:
    def outer() -> bool:
        pids = joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(3))
        return set(pids) == {os.getpid()}

    with joblib.parallel_config("sparkray"):
        assert all(joblib.Parallel()(joblib.delayed(outer)() for _ in range(4)))


def _large(kind: str) -> Any:
    np = pytest.importorskip("numpy")
    numbers = np.arange(1_000_000.0)
    if kind == "array":
        return numbers
    if kind == "sparse":
        return pytest.importorskip("scipy.sparse").csr_matrix(numbers)
    pandas = pytest.importorskip("pandas")
    return (
        pandas.DataFrame({"a": numbers}) if kind == "table" else pandas.Series(numbers)
    )


@pytest.mark.parametrize("kind", ["array", "table", "series", "sparse"])
def test_a_large_argument_is_stored_once(kind: str) -> None:
    def total(a: Any, i: int) -> tuple[float, int]:
        large = [row for row in list_objects() if row.size_bytes > 1_000_000]
        return float(getattr(a, "to_numpy", lambda: a)().sum()) + i, len(large)

    value = _large(kind)
    with joblib.parallel_config("sparkray", n_jobs=2):
        got = joblib.Parallel(batch_size=1)(
            joblib.delayed(total)(value, i) for i in range(6)
        )
    assert got == [(sum(range(1_000_000)) + i, 1) for i in range(6)]
    until(lambda: all(row.size_bytes < 1_000_000 for row in list_objects()))


def test_results_can_be_streamed() -> None:
    with joblib.parallel_config("sparkray", n_jobs=2):
        stream = joblib.Parallel(return_as="generator")(
            joblib.delayed(abs)(-i) for i in range(10)
        )
        assert next(stream) == 0
        assert list(stream) == list(range(1, 10))
        unordered = joblib.Parallel(return_as="generator_unordered")(
            joblib.delayed(abs)(-i) for i in range(10)
        )
        assert sorted(unordered) == list(range(10))


def test_a_stream_that_is_left_stops_the_rest(tmp_path: Any) -> None:
    tally = Tally(tmp_path)

    def work(i: int) -> int:
        tally.add(i)
        time.sleep(0.02)
        return i

    with joblib.parallel_config("sparkray", n_jobs=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = joblib.Parallel(
            return_as="generator", pre_dispatch="all", batch_size=1
        )(joblib.delayed(work)(i) for i in range(300))
        assert next(stream) == 0
        del stream
        gc.collect()
        assert joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(3)) == [0, 1, 2]
    assert tally.count() < 200


def test_ctrl_c_ends_a_parallel_call_and_the_next_one_works(tmp_path: Any) -> None:
    code = f"""
import joblib, time, sparkray
from sparkray.util.joblib import register_sparkray
sparkray.init(address="local", num_cpus=2)
register_sparkray()
def work(_):
    open({str(tmp_path / "begun")!r}, "w").close()
    time.sleep(600)
with joblib.parallel_config("sparkray", n_jobs=2):
    try:
        joblib.Parallel()(joblib.delayed(work)(i) for i in range(2))
    except KeyboardInterrupt:
        print(joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(3)))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=driver_environment(), stdout=subprocess.PIPE, text=True
    ) as driver:
        until((tmp_path / "begun").exists, 30)
        driver.send_signal(signal.SIGINT)
        out, _ = driver.communicate(timeout=30)
    assert out == "[0, 1, 2]\n"


def test_a_call_may_time_out() -> None:
    with (
        joblib.parallel_config("sparkray", n_jobs=2),
        pytest.raises(multiprocessing.TimeoutError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        joblib.Parallel(timeout=0.3)(joblib.delayed(time.sleep)(20) for _ in range(2))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_scikit_learn_searches_on_the_cluster() -> None:
    svm = pytest.importorskip("sklearn.svm")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV

    x, y = load_digits(n_class=2, return_X_y=True)
    search = GridSearchCV(svm.SVC(), {"C": [0.1, 1]}, cv=2, n_jobs=2)
    with joblib.parallel_config("sparkray"):
        search.fit(x, y)
    assert search.best_score_ > 0.9


def test_options_of_tasks_are_passed_on() -> None:
    def assigned() -> Any:
        return sparkray.get_runtime_context().get_assigned_resources()

    with joblib.parallel_config("sparkray", n_jobs=2, resources={"gadget": 0.5}):
        got = joblib.Parallel()(joblib.delayed(assigned)() for _ in range(2))
    assert got == [{"CPU": 1.0, "gadget": 0.5}] * 2


@pytest.mark.parametrize("nested", [False, True])
def test_threads_inside_of_tasks_can_be_limited(nested: bool) -> None:
    def limit() -> Any:
        return os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]

    def inner() -> Any:
        return joblib.Parallel(n_jobs=2)(joblib.delayed(limit)() for _ in range(1))[0]

    with joblib.parallel_config("sparkray", n_jobs=2, inner_max_num_threads=3):
        got = joblib.Parallel()(
            joblib.delayed(inner if nested else limit)() for _ in range(2)
        )
    assert got == [("3", "3")] * 2


def test_rays_name_for_the_options_of_tasks_is_taken_by_rays_backend() -> None:
    register_ray()

    def assigned() -> Any:
        return sparkray.get_runtime_context().get_assigned_resources()

    with joblib.parallel_config("ray", n_jobs=2, ray_remote_args={"num_cpus": 0.5}):
        got = joblib.Parallel()(joblib.delayed(assigned)() for _ in range(2))
    assert got == [{"CPU": 0.5}] * 2
