"""Every setting of sparkray: name, type, unit, default, environment variable.

A setting ``timeout_s`` is read from ``SPARKRAY_TIMEOUT_S`` when a process starts; what
`init` or the command line is given wins over it.  Runtimes take the settings marked
``shared`` from their agent, so that a cluster behaves the same everywhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "SPARKRAY_"
#: Variables that are no settings, read where they are needed; those of the second line
#: are for init scripts, those of the last for processes of sparkray's own.
_OTHERS = (
    *("ADDRESS", "TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"),
    *("REQUIREMENT", "PYTHON", "PORT", "WORKER_PORTS", "NUM_CPUS"),
    *("OMP_FOLLOWS_CPUS",),
)


def _setting(default: Any, doc: str, *, shared: bool = False) -> Any:
    return field(default=default, metadata={"doc": doc, "shared": shared})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, each with its default; `from_environment` reads the variables."""

    # tasks
    inline_max_bytes: int = _setting(
        100 * 1024, "values up to this size travel in messages", shared=True
    )
    work_ahead_s: float = _setting(
        0.008, "how much work is pushed ahead to one worker", shared=True
    )
    pipeline_max_tasks: int = _setting(
        100, "at most so many tasks are pushed ahead to one worker", shared=True
    )
    lease_idle_s: float = _setting(
        0.25, "a lease without work is given back after this time", shared=True
    )
    infeasible_timeout_s: float = _setting(
        15.0, "how long a request that no node could satisfy waits for a new node"
    )
    lease_min_hold_s: float = _setting(
        0.1, "how long a lease is kept at least before others may ask for it"
    )
    task_stop_s: float = _setting(
        2.0,
        "a task whose `timeout_s` is up may take so long to end; then its worker is"
        " killed",
        shared=True,
    )
    # workers
    max_workers: int = _setting(
        0, "cap on worker processes of a node; 0: 64 + 16 x CPUs, at most 2,048"
    )
    wait_log_s: float = _setting(
        60.0, "what waits longer says what it waits for; 0: nothing does", shared=True
    )
    worker_idle_s: float = _setting(
        30.0, "an idle worker above the CPU count ends then"
    )
    worker_start_timeout_s: float = _setting(
        60.0, "how long a worker may take to start"
    )
    worker_port_min: int = _setting(0, "first port for workers; 0: any free port")
    worker_port_max: int = _setting(0, "last port for workers")
    full_tracebacks: int = _setting(
        0, "1: tracebacks show the frames of sparkray itself as well"
    )
    # objects
    object_store_memory: int = _setting(
        0, "bytes of the object store; 0: 30 % of memory, as far as /dev/shm has room"
    )
    store_high_water: float = _setting(
        0.8, "fraction of the store above which it spills"
    )
    store_full_timeout_s: float = _setting(20.0, "how long `put` waits for room")
    lineage_max_bytes: int = _setting(
        64 << 20,
        "memory of a process for tasks that can run again for lost objects, in bytes",
    )
    spill_dir: str = _setting("", "directory for spilled objects; default: session dir")
    # cluster
    temp_dir: str = _setting(
        "", "parent of session directories; default: sparkray-<uid> under TMPDIR"
    )
    start_timeout_s: float = _setting(30.0, "how long starting or joining may take")
    spark_start_timeout_s: float = _setting(
        120.0, "how long nodes on Spark executors may take to start"
    )
    node_timeout_s: float = _setting(
        10.0, "a silent node is declared dead after this time"
    )
    report_interval_s: float = _setting(1.0, "how often an agent reports at least")
    memory_threshold: float = _setting(
        0.95, "fraction of host memory above which the newest retriable task is ended"
    )
    log_dir: str = _setting("", "directory for logs; default: in the session directory")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, **given: Any
    ) -> Settings:
        """Return defaults, overridden by variables, overridden by ``given`` (not None).

        Raises:
            ValueError: a variable does not parse; names the variable.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for setting in dataclasses.fields(cls):
            text = environment.get(PREFIX + setting.name.upper())
            if text is not None:
                values[setting.name] = _parse(setting.name, text, type(setting.default))
        values.update(
            {name: value for name, value in given.items() if value is not None}
        )
        return cls(**values)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, (int, float)) and not 0 <= value < math.inf:
                raise ValueError(
                    f"{PREFIX}{setting.name.upper()} must be 0 or more, not {value!r}"
                )

    def shared(self) -> dict[str, float]:
        """Return the numeric settings that runtimes take from their agent."""
        return {
            setting.name: getattr(self, setting.name)
            for setting in dataclasses.fields(self)
            if setting.metadata["shared"]
        }

    def with_shared(self, shared: Mapping[str, float]) -> Settings:
        kinds: dict[str, Any] = {
            setting.name: type(setting.default) for setting in dataclasses.fields(self)
        }
        values = {
            name: kinds[name](value) for name, value in shared.items() if name in kinds
        }
        return dataclasses.replace(self, **values)


def unknown_variables(environment: Mapping[str, str]) -> str:
    """Return a line that names the variables which look like ours and are not known,
    "" if there are none."""
    known = [*_OTHERS, *(field.name.upper() for field in dataclasses.fields(Settings))]
    said = []
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known:
            hint = ""
            for near in difflib.get_close_matches(name, known, 1):
                hint = f" (did you mean {PREFIX}{near}?)"
            said.append(variable + hint)
    return f"ignored, unknown: {', '.join(said)}" if said else ""


def _parse(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(
            f"{PREFIX}{name.upper()}={text!r} is not a valid {kind.__name__}"
        ) from error
