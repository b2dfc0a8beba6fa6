"""sparkray: nested remote tasks over a Spark cluster, in plain Python.

    import sparkray

    @sparkray.remote
    def square(x):
        return x * x

    sparkray.init()
    print(sparkray.get([square.remote(i) for i in range(4)]))

Importing this package starts nothing and loads little: each public name brings its
module along on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sparkray.api.actor import get_actor as get_actor
    from sparkray.api.actor import kill as kill
    from sparkray.api.actor import list_named_actors as list_named_actors
    from sparkray.api.actor_methods import method as method
    from sparkray.api.cluster_info import available_resources as available_resources
    from sparkray.api.cluster_info import cluster_resources as cluster_resources
    from sparkray.api.cluster_info import nodes as nodes
    from sparkray.api.context import RuntimeContext as RuntimeContext
    from sparkray.api.context import get_gpu_ids as get_gpu_ids
    from sparkray.api.context import get_runtime_context as get_runtime_context
    from sparkray.api.objects import cancel as cancel
    from sparkray.api.objects import get as get
    from sparkray.api.objects import put as put
    from sparkray.api.objects import wait as wait
    from sparkray.api.placement_group import (
        get_current_placement_group as get_current_placement_group,
    )
    from sparkray.api.placement_group import get_placement_group as get_placement_group
    from sparkray.api.placement_group import placement_group as placement_group
    from sparkray.api.placement_group import (
        placement_group_table as placement_group_table,
    )
    from sparkray.api.placement_group import (
        remove_placement_group as remove_placement_group,
    )
    from sparkray.api.placement_handle import PlacementGroup as PlacementGroup
    from sparkray.api.remote_function import RemoteFunction as RemoteFunction
    from sparkray.api.remote_function import remote as remote
    from sparkray.api.session import Context as Context
    from sparkray.api.session import init as init
    from sparkray.api.session import is_initialized as is_initialized
    from sparkray.api.session import shutdown as shutdown
    from sparkray.api.strategies import (
        NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy,
    )
    from sparkray.api.strategies import (
        PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy,
    )
    from sparkray.runtime.refs import ObjectRef as ObjectRef
    from sparkray.runtime.refs import ObjectRefGenerator as ObjectRefGenerator

#: Module -> the public names that live in it.
_HOMES = {
    "sparkray.api.actor": "get_actor kill list_named_actors",
    "sparkray.api.actor_methods": "method",
    "sparkray.api.context": "RuntimeContext get_gpu_ids get_runtime_context",
    "sparkray.api.cluster_info": "available_resources cluster_resources nodes",
    "sparkray.api.objects": "cancel get put wait",
    "sparkray.api.placement_group": (
        "get_current_placement_group get_placement_group placement_group"
        " placement_group_table remove_placement_group"
    ),
    "sparkray.api.placement_handle": "PlacementGroup",
    "sparkray.api.remote_function": "RemoteFunction remote",
    "sparkray.api.session": "Context init is_initialized shutdown",
    "sparkray.api.strategies": (
        "NodeAffinitySchedulingStrategy PlacementGroupSchedulingStrategy"
    ),
    "sparkray.runtime.refs": "ObjectRef ObjectRefGenerator",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_SUBMODULES = frozenset({"actor", "compat", "exceptions", "spark", "testing", "util"})

__all__ = [  # noqa: RUF022 - as a reader meets them
    "init",
    "shutdown",
    "is_initialized",
    "Context",
    "remote",
    "RemoteFunction",
    "get",
    "put",
    "wait",
    "cancel",
    "kill",
    "method",
    "get_actor",
    "ObjectRef",
    "ObjectRefGenerator",
    "nodes",
    "cluster_resources",
    "available_resources",
    "get_runtime_context",
    "get_gpu_ids",
    "RuntimeContext",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"sparkray.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'sparkray' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_SUBMODULES})
