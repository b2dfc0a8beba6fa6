"""Ray's names and what became of them.  `page` is docs/compatibility.md; a test holds
the list against the code, so neither can go out of date."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sparkray.compat import ray
from sparkray.compat.ray import IGNORED, REFUSED
from sparkray.compat.ray._options import OF_GROUPS, WITHOUT_EFFECT

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
    Row("remote", _D, "options: see below; unknown ones are an error"),
    Row("method", _W),
    Row("__version__", _D, "of sparkray"),
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
    Row(
        "ObjectRef",
        _D,
        "ids are bytes; no `as_future` (use `asyncio.wrap_future(ref.future())`),"
        " `call_site`, `from_binary`, `from_hex`, `from_random`, `job_id`, `nil`,"
        " `owner_address`, `redis_shard_hash`, `size`, `tensor_transport`",
    ),
    Row(
        "ObjectRefGenerator",
        _D,
        "`next_ready(timeout_s)`; cannot be sent; no `is_finished`, `send`, `throw`,"
        " `close`, `asend`, `athrow`, `aclose`",
    ),
    Row("actor.ActorClass", _D, "no `bind`: there are no graphs"),
    Row("actor.ActorHandle", _W),
    Row("actor.ActorMethod", _W),
    Row("actor.exit_actor", _W),
    Row("remote_function.RemoteFunction", _D, "no `bind`: there are no graphs"),
    Row(
        "runtime_context.RuntimeContext",
        _D,
        "no `get_resource_ids`, `get_session_name`, `get_temp_dir`, `is_canceled`;"
        " `job_id`, `node_id`, `task_id`, `actor_id` only by `get_job_id()` etc.",
    ),
    Row("runtime_context.get_runtime_context", _W),
    Row(
        "runtime_env.RuntimeEnv",
        _D,
        "a plain dict, checked where it is used; keys: see below",
    ),
    Row("runtime_env.RuntimeEnvConfig", _D, "`eager_install` changes nothing"),
    Row("experimental.tqdm_ray.safe_print", _D, "is `print`"),
    Row("experimental.tqdm_ray.tqdm", _D, "`position` changes nothing"),
    Row("util.ActorPool", _D, "free actors go on while the oldest result is awaited"),
    Row("util.as_completed", _D, "`chunk_size` changes nothing: each comes at once"),
    Row("util.map_unordered", _D, "`chunk_size` changes nothing: each comes at once"),
    Row("util.list_named_actors", _W),
    Row("util.get_node_ip_address", _W),
    Row("util.inspect_serializability", _D, "`depth` changes nothing; finds the first"),
    Row("util.placement_group", _W),
    Row("util.placement_group.PlacementGroup", _D, "no `empty`; a removed one raises"),
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
    *(
        Row(f"util.state.{name}", _A, note)
        for name, note in {
            "get_actor": "not yet",
            "get_job": "look in `list_jobs()`",
            "get_log": "see `sparkray status` for where logs are",
            "get_node": "look in `list_nodes()`",
            "get_objects": "look in `list_objects()`",
            "get_placement_group": "use `util.placement_group_table`",
            "get_task": "not yet",
            "get_worker": "not yet",
            "list_actors": "not yet; names: `util.list_named_actors`",
            "list_cluster_events": "there are none",
            "list_logs": "see `sparkray status` for where logs are",
            "list_placement_groups": "use `util.placement_group_table`",
            "list_runtime_envs": "not yet",
            "list_tasks": "not yet",
            "list_workers": "not yet",
            "summarize_actors": "not yet",
            "summarize_objects": "count `list_objects()`",
            "summarize_tasks": "not yet",
            "StateApiClient": "use the functions",
        }.items()
    ),
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
    Row("exceptions.ActorAlreadyExistsError", _W),
    Row("exceptions.ActorHandleNotFoundError", _D, "is `ActorDiedError`"),
    Row("exceptions.AuthenticationError", _D, "is `ProtocolError`"),
    Row("exceptions.ReferenceCountingAssertionError", _D, "is `ObjectLostError`"),
    Row("exceptions.RpcError", _D, "is `ClusterError`"),
    Row("exceptions.UnserializableException", _D, "is `TaskError`"),
    Row("exceptions.UserCodeException", _D, "is `TaskError`"),
    *(
        Row(f"exceptions.{name}", _D, "never raised")
        for name in (
            "ObjectRefStreamEndOfStreamError",
            "OufOfBandObjectRefSerializationException",
            "StreamingGeneratorReplayInconsistentError",
            "RayChannelError",
            "RayChannelTimeoutError",
            "RayCgraphCapacityExceeded",
            "RayDirectTransportError",
        )
    ),
    Row("exceptions.CrossLanguageError", _A, "Python is the only language"),
    Row("exceptions.AsyncioActorExit", _A, "`exit_actor` works in async actors"),
    *(
        Row(name, _A, "ids are bytes or hexadecimal text")
        for name in (
            "ActorClassID",
            "ActorID",
            "FunctionID",
            "JobID",
            "NodeID",
            "ObjectID",
            "PlacementGroupID",
            "TaskID",
            "UniqueID",
            "WorkerID",
        )
    ),
    Row("DynamicObjectRefGenerator", _A, "import it from sparkray"),
    Row("ClientBuilder", _A, "drivers run on hosts that run a node"),
    Row("SCRIPT_MODE", _A, "there are no modes"),
    Row("WORKER_MODE", _A, "there are no modes"),
    Row("_config", _A, "settings are variables: see the page on configuration"),
    Row("autoscaler", _A, "on Spark a cluster follows its executors"),
    Row("internal", _A, "Ray's own"),
    Row("widgets", _A, "Ray's own"),
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
    Row("util.pdb", _A, "attach a debugger to the process"),
    Row("util.ray_debugpy", _A, "attach a debugger to the process"),
    Row("util.accelerators", _A, "label the nodes"),
    Row("util.connect", _A, "drivers run on hosts that run a node"),
    Row("util.disconnect", _A, "drivers run on hosts that run a node"),
    Row("util.deregister_serializer", _A, "use `copyreg`"),
    Row("util.register_serializer", _A, "use `copyreg`"),
    Row("util.disable_log_once_globally", _A, "Ray's own"),
    Row("util.enable_periodic_logging", _A, "Ray's own"),
    Row("util.log_once", _A, "Ray's own"),
    Row("util.get_node_instance_id", _A, "not known"),
    Row("util.iter", _A, "out of scope"),
    Row("util.serialization", _A, "give the class a `__reduce__`, or use `copyreg`"),
    Row("util.tpu", _A, "out of scope"),
    Row("dag", _A, "use tasks and actors"),
    Row("data", _A, "use Spark"),
    Row("train", _A, "out of scope"),
    Row("serve", _A, "out of scope"),
    Row("workflow", _A, "out of scope"),
    Row("util.collective", _A, "out of scope"),
)

_SAME_OPTIONS: Final = """
_generator_backpressure_num_objects allow_out_of_order_execution concurrency_groups
generator_backpressure_num_objects get_if_exists label_selector lifetime max_calls
max_concurrency max_pending_calls max_restarts max_retries max_task_retries memory name
namespace num_cpus num_gpus num_returns resources retry_exceptions runtime_env
scheduling_strategy
"""
_SAME_KEYS: Final = "config env_vars excludes pip py_modules worker_process_setup_hook"
#: Every option of Ray's tasks and actors.
OPTIONS: Final = (
    *(Row(name, _W) for name in _SAME_OPTIONS.split()),
    *(Row(name, _W) for name in OF_GROUPS),
    *(
        Row(name, _D, f"a warning, and no effect: {why}")
        for name, why in WITHOUT_EFFECT.items()
    ),
)
#: Every key of Ray's runtime environments.
RUNTIME_ENV: Final = (
    *(Row(name, _W) for name in _SAME_KEYS.split()),
    Row(
        "working_dir",
        _D,
        "a directory or a zip of this machine, no URI; `.gitignore` is not heeded: name"
        " what is to stay in `excludes`",
    ),
    Row("conda", _A, "use `pip`, or start the nodes in the environment"),
    Row("uv", _A, "use `pip`"),
    Row("container", _A, "start the nodes in containers"),
    Row("image_uri", _A, "start the nodes in containers"),
    Row("java_jars", _A, "Python is the only language"),
    Row("py_executable", _A, "start the nodes with that interpreter"),
    Row("_inject_current_ray", _A, "Ray's own"),
    Row("_nsight", _A, "start the profiler in a task"),
    Row("_rocprof_sys", _A, "start the profiler in a task"),
    Row("_ray_commit", _A, "Ray's own"),
    Row("_ray_release", _A, "Ray's own"),
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
_OPTIONS: Final = """
## Options of tasks and actors

| option | verdict | how, or why |
|---|---|---|
"""
_KEYS: Final = """
## Keys of runtime environments

| key | verdict | how, or why |
|---|---|---|
"""
_INIT: Final = """
## Arguments of `init` that Ray has and sparkray does not

| argument | what happens |
|---|---|
"""


def page() -> str:
    """Return the text of docs/compatibility.md."""
    arguments = [f"| `{name}` | no effect: {why} |" for name, why in IGNORED.items()]
    arguments += [f"| `{name}` | an error: {what} |" for name, what in REFUSED.items()]
    return "".join(
        [
            _HEAD + _lines(TABLE),
            _OPTIONS + _lines(OPTIONS),
            _KEYS + _lines(RUNTIME_ENV),
            _INIT + "\n".join(arguments) + "\n",
        ]
    )


def _lines(rows: Iterable[Row]) -> str:
    return "".join(f"| `{r.name}` | {r.verdict.value} | {r.note} |\n" for r in rows)


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
    return [name for name in names if name not in ("table", "_options")]
