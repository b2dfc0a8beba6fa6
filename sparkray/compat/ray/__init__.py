"""Ray's names, so that a script changes one line:

    import sparkray.compat.ray as ray

and, where it imports from Ray's modules, their names likewise:

    from sparkray.compat.ray.util.queue import Queue

What is here, and how it differs, is in `sparkray.compat.ray.table`.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, Final

import sparkray
from sparkray import (
    ObjectRef,
    ObjectRefGenerator,
    available_resources,
    cancel,
    cluster_resources,
    get,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    is_initialized,
    kill,
    nodes,
    put,
    shutdown,
    wait,
)
from sparkray.compat.ray.remote_function import method, remote

__all__ = [
    "ObjectRef",
    "ObjectRefGenerator",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "wait",
]

_log = logging.getLogger("sparkray.compat.ray")
_SUBMODULES: Final = (
    "actor",
    "exceptions",
    "experimental",
    "remote_function",
    "runtime_context",
    "runtime_env",
    "util",
)
__version__ = sparkray.__version__

#: Arguments of Ray's `init` that change nothing here -> why.
IGNORED: Final = {
    "configure_logging": "sparkray leaves the program's logging alone",
    "dashboard_host": "there is no dashboard",
    "dashboard_port": "there is no dashboard",
    "enable_object_reconstruction": "objects that are lost are always made again",
    "include_dashboard": "there is no dashboard",
    "logging_config": "set up Python's logging instead",
    "logging_format": "set up Python's logging instead",
    "_enable_object_reconstruction": "objects that are lost are always made again",
    "_metrics_export_port": "no metrics are exported",
    "_system_config": "Ray's own settings",
    "_tracing_startup_hook": "there is no tracing",
}
#: Arguments that ask for what cannot be had -> what to do.
REFUSED: Final = {
    "job_config": "pass namespace and runtime_env to init",
    "local_mode": "call the functions without .remote, or use num_cpus=1",
    "enable_resource_isolation": "control groups are not used",
    "_node_ip_address": "start the node with `sparkray start --host`",
    "_redis_password": "pass token, or set SPARKRAY_TOKEN",
    "_redis_username": "pass token, or set SPARKRAY_TOKEN",
    "_temp_dir": "set SPARKRAY_TEMP_DIR",
}


def init(address: Any = None, **given: Any) -> Any:
    """Do as `sparkray.init`; take Ray's arguments as well.

    Raises:
        ValueError: an argument that asks for what there is not, with what to do.
        TypeError: an argument that neither has.
    """
    if isinstance(address, str) and address.startswith("ray://"):
        raise ValueError(
            f"{address}: there is no client that is outside of the cluster; use"
            " host:port, from a host that runs a node"
        )
    for name in [name for name in given if name in IGNORED]:
        _log.debug("init(%s=%r) has no effect: %s", name, given[name], IGNORED[name])
        del given[name]
    for name in [name for name in given if name in REFUSED]:
        if given.pop(name):
            raise ValueError(f"init does not take {name}: {REFUSED[name]}")
    return sparkray.init(address, **given)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"sparkray.compat.ray.{name}")
    raise AttributeError(
        f"sparkray.compat.ray has no {name!r}; docs/compatibility.md lists what it has"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
