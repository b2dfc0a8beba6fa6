"""A backend of joblib: its batches become tasks.

    from sparkray.util.joblib import register_sparkray
    register_sparkray()
    with joblib.parallel_config("sparkray"):
        GridSearchCV(...).fit(X, y)

A `Parallel` inside of such a task makes tasks, too; one inside of those runs in line.
"""

from __future__ import annotations

from typing import Any, Final

import joblib
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

import sparkray
from sparkray.util.futures import Executor

__all__ = ["SparkrayBackend", "register_sparkray"]

#: Arguments of this size or more are stored once a call, not sent with each batch.
_SHARED_MIN_BYTES: Final = 100_000
_SHARED_MOST: Final = 32


def register_sparkray() -> None:
    """Make the backend known to joblib, as ``"sparkray"``."""
    joblib.register_parallel_backend("sparkray", SparkrayBackend)


class SparkrayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Made by joblib; keyword arguments given beside its name are options of the tasks,
    as for `sparkray.remote`."""

    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **task_options: Any,
    ) -> None:
        super().__init__(
            nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads
        )
        self._task_options = task_options
        self._executor: Executor | None = None
        self._shared: dict[int, tuple[Any, Any]] = {}  #: id -> the object, its ref
        if nesting_level:
            self.default_n_jobs = 1  # as elsewhere: in line unless asked

    def __reduce__(self) -> Any:
        options = {
            "inner_max_num_threads": self.inner_max_num_threads,
            **self._task_options,
        }
        return _make, (self.nesting_level, options)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        level = (self.nesting_level or 0) + 1
        if level > 1:
            return SequentialBackend(nesting_level=level), None
        return _make(level, self.__reduce__()[1][1]), None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many tasks run at a time; negative numbers count down from the
        CPUs of the cluster, -1 being all of them."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        cpus = int(sparkray.cluster_resources().get("CPU", 1))
        return max(1, cpus + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_hints: Any) -> int:
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._executor = Executor(n_jobs, task_options=self._options())
        return n_jobs

    def submit(self, func: Any, callback: Any = None) -> Any:
        assert self._executor is not None, "configure comes first"
        future = self._executor.submit(*self._with_shared(func))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Any) -> Any:
        return out.result()

    def stop_call(self) -> None:
        self._shared.clear()

    def terminate(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        self._shared.clear()
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        if self._executor is not None:
            self._executor.abort()
            self._executor = None
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def _options(self) -> dict[str, Any]:
        options = {"name": "joblib", **self._task_options}
        if self.inner_max_num_threads is not None:
            limit = str(self.inner_max_num_threads)
            env = options.get("runtime_env") or {}
            limits = dict.fromkeys(self.MAX_NUM_THREADS_VARS, limit)
            variables = {**limits, **env.get("env_vars", {})}
            options["runtime_env"] = {**env, "env_vars": variables}
        return options

    def _with_shared(self, batch: Any) -> tuple[Any, ...]:
        """Replace large arguments that come again and again by refs."""
        items = getattr(batch, "items", None)
        if items is None:
            return (batch,)
        batch.items = [
            (
                function,
                tuple(map(self._share, args)),
                {name: self._share(value) for name, value in kwargs.items()},
            )
            for function, args, kwargs in items
        ]
        return _run_batch, batch

    def _share(self, value: Any) -> Any:
        if _size_bytes(value) < _SHARED_MIN_BYTES:
            return value
        known = self._shared.get(id(value))
        if known is None:
            if len(self._shared) >= _SHARED_MOST:
                self._shared.pop(next(iter(self._shared)))
            known = self._shared[id(value)] = (value, sparkray.put(value))
        return _Stored(known[1])


class _Stored:
    """Stands for an argument that lies in the object store."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref


def _size_bytes(value: Any) -> int:
    """Return the size of an array, a text, a table or a sparse matrix; else 0."""
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    library = type(value).__module__.partition(".")[0]
    if library == "pandas" and hasattr(value, "memory_usage"):
        usage = value.memory_usage()  # of a table: one number a column
        return int(usage.sum()) if hasattr(usage, "sum") else int(usage)
    held = getattr(value, "data", None) if library == "scipy" else value
    size = getattr(held, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _make(nesting_level: int | None, task_options: dict[str, Any]) -> SparkrayBackend:
    return SparkrayBackend(nesting_level=nesting_level, **task_options)


def _run_batch(batch: Any) -> Any:
    """Run a batch in a task, large arguments put back."""
    values: dict[Any, Any] = {}

    def load(value: Any) -> Any:
        if not isinstance(value, _Stored):
            return value
        if value.ref not in values:
            values[value.ref] = sparkray.get(value.ref)
        return values[value.ref]

    batch.items = [
        (
            function,
            tuple(map(load, args)),
            {name: load(value) for name, value in kwargs.items()},
        )
        for function, args, kwargs in batch.items
    ]
    return batch()
