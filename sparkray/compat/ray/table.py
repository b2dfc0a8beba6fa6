"""Ray's names and what became of them.  `page` is docs/compatibility.md; a test holds
the list against the code, so neither can go out of date."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from typing import Any, Final, NamedTuple

from sparkray.compat import ray
from sparkray.compat.ray import IGNORED, REFUSED

__all__ = ["TABLE", "Row", "Verdict", "page", "resolve"]


class Verdict(enum.Enum):
    """What a script that uses the name finds."""

    WORKS = "works"
    """The same."""
    DIFFERS = "differs"
    """The same purpose, another detail."""
    ABSENT = "not there"
    """Nothing of this name."""


class Row(NamedTuple):
    name: str  #: as after ``ray.``
    verdict: Verdict
    note: str = ""


_LOST: Final = "exceptions.ObjectReconstructionFailed"
_W, _D, _A = Verdict.WORKS, Verdict.DIFFERS, Verdict.ABSENT

TABLE: Final = (
    Row("init", _D, "joins what runs on this host, else starts a private cluster"),
    Row("shutdown", _W),
    Row("is_initialized", _W),
    Row("remote", _D, "options that do not exist are an error, not a warning"),
    Row("method", _W),
    Row("get", _D, "lists of refs and single refs; no tuples"),
    Row("put", _D, "values that come back are read-only where memory is shared"),
    Row("wait", _D, "`fetch_local` is taken and changes nothing"),
    Row("cancel", _W),
    Row("kill", _W),
    Row("get_actor", _W),
    Row("nodes", _W),
    Row("cluster_resources", _W),
    Row("available_resources", _W),
    Row("get_runtime_context", _D, "the ids and names; see `RuntimeContext`"),
    Row("get_gpu_ids", _W),
    Row("ObjectRef", _W),
    Row("ObjectRefGenerator", _D, "`next_ready(timeout_s)`; cannot be sent"),
    Row("actor.ActorClass", _W),
    Row("actor.ActorHandle", _W),
    Row("actor.ActorMethod", _W),
    Row("actor.exit_actor", _W),
    Row("remote_function.RemoteFunction", _W),
    Row("runtime_context.RuntimeContext", _W),
    Row("runtime_context.get_runtime_context", _W),
    Row("runtime_env.RuntimeEnv", _D, "a plain dict, checked where it is used"),
    Row("runtime_env.RuntimeEnvConfig", _D, "`eager_install` changes nothing"),
    Row("experimental.tqdm_ray.tqdm", _D, "`position` changes nothing"),
    Row("util.ActorPool", _D, "free actors go on while the oldest result is awaited"),
    Row("util.as_completed", _D, "`chunk_size` changes nothing: each comes at once"),
    Row("util.map_unordered", _D, "`chunk_size` changes nothing: each comes at once"),
    Row("util.list_named_actors", _W),
    Row("util.get_node_ip_address", _W),
    Row("util.inspect_serializability", _D, "`depth` changes nothing; finds the first"),
    Row("util.placement_group", _W),
    Row("util.placement_group.PlacementGroup", _W),
    Row("util.remove_placement_group", _W),
    Row("util.placement_group_table", _W),
    Row("util.get_placement_group", _W),
    Row("util.get_current_placement_group", _W),
    Row("util.queue.Queue", _D, "a cancelled `get` takes no item with it"),
    Row("util.queue.Empty", _W),
    Row("util.queue.Full", _W),
    Row("util.joblib.register_ray", _W),
    Row("util.joblib.register_sparkray", _D, "Ray: `register_ray`"),
    Row("util.scheduling_strategies.NodeAffinitySchedulingStrategy", _W),
    Row("util.scheduling_strategies.PlacementGroupSchedulingStrategy", _W),
    Row(
        "util.scheduling_strategies.NodeLabelSchedulingStrategy",
        _A,
        "use the option `label_selector`",
    ),
    Row("util.state.list_nodes", _D, "rows are dataclasses of our own"),
    Row("util.state.list_objects", _D, "rows are dataclasses of our own"),
    Row("util.state.list_jobs", _D, "rows are dataclasses of our own"),
    Row("exceptions.RayError", _D, "is `SparkrayError`"),
    Row("exceptions.RayTaskError", _D, "is `TaskError`; an instance of the user's too"),
    Row("exceptions.RayActorError", _D, "is `ActorError`"),
    Row("exceptions.RaySystemError", _D, "is `ClusterError`"),
    Row("exceptions.ActorDiedError", _W),
    Row("exceptions.ActorUnavailableError", _W),
    Row("exceptions.ActorUnschedulableError", _D, "is `UnschedulableError`"),
    Row("exceptions.TaskUnschedulableError", _D, "is `UnschedulableError`"),
    Row("exceptions.TaskCancelledError", _W),
    Row("exceptions.GetTimeoutError", _W),
    Row("exceptions.WorkerCrashedError", _W),
    Row("exceptions.NodeDiedError", _W),
    Row("exceptions.OutOfMemoryError", _W),
    Row("exceptions.OutOfDiskError", _D, "is `ObjectStoreFullError`"),
    Row("exceptions.ObjectStoreFullError", _W),
    Row("exceptions.ObjectLostError", _W),
    Row("exceptions.OwnerDiedError", _W),
    Row("exceptions.ObjectFreedError", _D, "is `ObjectLostError`"),
    Row("exceptions.ObjectFetchTimedOutError", _D, "is `ObjectLostError`"),
    Row("exceptions.ObjectReconstructionFailedError", _D, "is `ObjectLostError`"),
    Row(f"{_LOST}LineageEvictedError", _D, "is `ObjectLostError`"),
    Row(f"{_LOST}MaxAttemptsExceededError", _D, "is `ObjectLostError`"),
    Row("exceptions.PlasmaObjectNotAvailable", _D, "is `ObjectLostError`"),
    Row("exceptions.LocalRayletDiedError", _D, "is `NodeDiedError`"),
    Row("exceptions.TaskPlacementGroupRemoved", _D, "is `PlacementGroupRemovedError`"),
    Row("exceptions.ActorPlacementGroupRemoved", _D, "is `PlacementGroupRemovedError`"),
    Row("exceptions.RuntimeEnvSetupError", _W),
    Row("exceptions.PendingCallsLimitExceeded", _W),
    Row("exceptions.CrossLanguageError", _A, "Python is the only language"),
    Row("exceptions.AsyncioActorExit", _A, "`exit_actor` works in async actors"),
    Row("client", _A, "drivers run on hosts that run a node"),
    Row("timeline", _A, "there is no profile of tasks"),
    Row("java_function", _A, "Python is the only language"),
    Row("java_actor_class", _A, "Python is the only language"),
    Row("cpp_function", _A, "Python is the only language"),
    Row("Language", _A, "Python is the only language"),
    Row("LOCAL_MODE", _A, "call the functions without `.remote`"),
    Row("job_config", _A, "pass `namespace` and `runtime_env` to `init`"),
    Row("LoggingConfig", _A, "set up Python's logging"),
    Row("actor.ActorClassInheritanceException", _A, "it is a TypeError"),
    Row("util.metrics", _A, "no metrics are exported"),
    Row("util.multiprocessing", _A, "not yet"),
    Row("util.rpdb", _A, "attach a debugger to the process"),
    Row("util.serialization", _A, "give the class a `__reduce__`, or use `copyreg`"),
    Row("util.tpu", _A, "out of scope"),
    Row("dag", _A, "use tasks and actors"),
    Row("data", _A, "use Spark"),
    Row("train", _A, "out of scope"),
    Row("serve", _A, "out of scope"),
    Row("workflow", _A, "out of scope"),
    Row("util.collective", _A, "out of scope"),
)

_HEAD: Final = """\
# Compatibility with Ray

`import sparkray.compat.ray as ray` lets a script written for Ray's core run with one
line changed; a line like `from ray.util.queue import Queue` becomes
`from sparkray.compat.ray.util.queue import Queue`. This page is generated from
`sparkray/compat/ray/table.py` by `python docs/generate.py`.

| `ray.` | verdict | how, or why |
|---|---|---|
"""
_INIT: Final = """
## Arguments of `init` that Ray has and sparkray does not

| argument | what happens |
|---|---|
"""


def page() -> str:
    """Return the text of docs/compatibility.md."""
    rows = [f"| `{row.name}` | {row.verdict.value} | {row.note} |" for row in TABLE]
    arguments = [f"| `{name}` | no effect: {why} |" for name, why in IGNORED.items()]
    arguments += [f"| `{name}` | an error: {what} |" for name, what in REFUSED.items()]
    return _HEAD + "\n".join(rows) + "\n" + _INIT + "\n".join(arguments) + "\n"


def resolve(name: str) -> Any:
    """Return what a script imports as ``ray.<name>``.

    Raises:
        AttributeError: nothing.
    """
    module = ".".join([ray.__name__, *name.split(".")[:-1]])
    return getattr(importlib.import_module(module), name.rpartition(".")[2])


def modules() -> list[str]:
    """Return the modules that a script can import from, as after ``ray.``"""
    found = pkgutil.walk_packages(ray.__path__, f"{ray.__name__}.")
    names = [info.name.removeprefix(f"{ray.__name__}.") for info in found]
    return [name for name in names if name != "table"]
