"""`remote`: turns a function into one that runs somewhere in the cluster.

``f.remote(...)`` is the hot path of the whole system: it compares two numbers to check
the call, and hands over to the runtime.  All that can be known before the first call is
worked out once per function (options, signature) or once per runtime (the template).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from sparkray.api import options as options_
from sparkray.api import packages, runtime_env, session
from sparkray.api.actor import ActorClass
from sparkray.api.signature import CallSignature
from sparkray.runtime import core
from sparkray.runtime.arguments import UnsendableArgument
from sparkray.runtime.functions import TaskTemplate

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: How many sets of options of one function are remembered.
_VARIANTS_KEPT = 32
#: What `RemoteFunction._prepare` sets.
_PREPARED = frozenset(
    [
        "__name__",
        "__qualname__",
        "__wrapped__",
        "_fewest",
        "_most",
        "_name",
        "_options",
        "_runtime",
        "_signature",
        "_template",
        "_variants",
    ]
)


class RemoteFunction(Generic[_P, _R]):
    """A function that runs as a task: call `remote`, never the object itself.

    Pickles as the function and its options.

    Args:
        function: a plain or a generator function.
        given: options as for `remote`.

    Raises:
        TypeError: ``function`` cannot be a task, or an option has the wrong type.
        ValueError: an option has a wrong value.
    """

    def __init__(self, function: Callable[_P, _R], given: dict[str, Any]) -> None:
        self._function = function
        self._checked = options_.check(given)
        self._prepare()

    def _prepare(self) -> None:
        """Work out all that calls need."""
        function = self._function
        is_generator = inspect.isgeneratorfunction(_innermost(function))
        self._options = options_.resolve(self._checked, is_generator=is_generator)
        self._name = self._options.name or _name_of(function)
        self._signature = CallSignature(function, self._name)
        self._fewest, self._most = self._signature.fewest, self._signature.most
        self._variants: dict[Any, RemoteFunction[_P, _R]] = {}
        self._runtime: core.Runtime | None = None
        self._template: Any = None  #: the `TaskTemplate` for that runtime
        functools.update_wrapper(self, function, updated=())

    def __getattr__(self, name: str) -> Any:
        # Only after unpickling: a function that refers to itself was not whole then.
        if name not in _PREPARED:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        self._prepare()
        return self.__dict__[name]

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit one call; return at once.

        An `ObjectRef` that is itself an argument is replaced by its value before the
        function runs; one inside a list or another object stays a ref.

        Returns:
            an `ObjectRef`; a list of them with ``num_returns`` of 2 or more; None with
            0; an `ObjectRefGenerator` for a streaming generator.

        Raises:
            TypeError: the function does not take these arguments, or one of them
                cannot be pickled.
            ValueError: what its runtime_env names cannot be shipped.
            PlacementGroupRemovedError: its placement group was in another cluster.
        """
        runtime = core.current_or_none()
        if runtime is None or runtime is not self._runtime:
            runtime = self._enter_runtime()
        if kwargs or not self._fewest <= len(args) <= self._most:
            self._signature.check(args, kwargs)
        try:
            return runtime.submit(self._template, args, kwargs)
        except UnsendableArgument as error:
            raise self._signature.named(error) from error.__cause__

    def options(self, **given: Any) -> RemoteFunction[_P, _R]:
        """Return this function with other options; this one stays as it is.

        Raises:
            TypeError: an option has the wrong type.
            ValueError: an option has a wrong value, or does not exist.
        """
        key = _key(given)
        known = self._variants.get(key) if key is not None else None
        if known is not None:
            return known
        given = {options_.ALIASES.get(name, name): given[name] for name in given}
        made = type(self)(self._function, {**self._checked, **given})
        if key is not None:
            if len(self._variants) >= _VARIANTS_KEPT:
                self._variants.clear()
            self._variants[key] = made
        return made

    def _enter_runtime(self) -> core.Runtime:
        """Make the template for the runtime in force, starting a session if need be."""
        runtime = session.ensure_runtime()
        options_.check_cluster(self._checked, runtime)
        chosen, own_env = self._options, self._options.runtime_env
        if own_env:  # what is inherited whole needs no mention
            own_env = packages.ship(runtime, own_env)
            own_env = runtime_env.merge(session.inherited_env(runtime), own_env)
        self._template = TaskTemplate(
            self._function,
            name=self._name,
            num_returns=chosen.num_returns,
            resources=chosen.resources,
            runtime_env=own_env,
            strategy=chosen.strategy,
            max_retries=chosen.max_retries,
            retry_exceptions=chosen.retry_exceptions,
            max_calls=chosen.max_calls,
            backpressure=chosen.backpressure,
            inherits=chosen.inherits,
            timeout_s=chosen.timeout_s,
        )
        self._runtime = runtime
        return runtime

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a remote function: call {self._name}.remote(...), or"
            " __wrapped__ to run it right here"
        )

    def __getstate__(self) -> tuple[Callable[_P, _R], dict[str, Any]]:
        return self._function, packages.portable(self._checked)

    def __setstate__(self, state: tuple[Callable[_P, _R], dict[str, Any]]) -> None:
        self._function, self._checked = state

    def __repr__(self) -> str:
        return f"<remote function {self._name}>"


@overload
def remote(function: Callable[_P, _R], /) -> RemoteFunction[_P, _R]: ...


@overload
def remote(
    **given: Any,
) -> Callable[[Callable[_P, _R]], RemoteFunction[_P, _R]]: ...


def remote(*positional: Any, **given: Any) -> Any:
    """Make a function remote: ``@remote``, ``@remote(num_cpus=2)`` or ``remote(f)``.

    Args:
        num_cpus, num_gpus: what one task holds while it runs; fractions down to
            1/10,000.  Default: one CPU, no GPU.
        memory: bytes that are set aside for it while it runs.
        resources: other resources by name.
        num_returns: how many refs a call returns; ``"streaming"`` (default of generator
            functions): a generator of refs; ``"dynamic"``: one ref of such a generator.
        max_retries: how often a task is run again when its worker dies; -1: always.
        retry_exceptions: whether, or for which exception classes, a task that raises is
            run again too.
        max_calls: a worker ends after so many calls of this function; 0: never.
            Default: 0, and 1 for functions with GPUs, whose memory only the end of a
            process frees.
        name: what to call the task in messages and logs.
        runtime_env: a dict of ``env_vars``, ``working_dir``, ``py_modules``,
            ``excludes``, ``pip``, ``worker_process_setup_hook`` and ``config``.
        scheduling_strategy: ``"DEFAULT"``, ``"SPREAD"``, or one of the strategies in
            `sparkray.util.scheduling_strategies`.
        label_selector: which nodes will do, by their labels, e.g. ``{"zone": "a",
            "tier": "!spot", "disk": "in(ssd, nvme)", "arch": "!in(arm, x86)"}``; the
            label ``sparkray.io/node-id`` names one node.
        generator_backpressure_num_objects: a streaming task pauses when so many of its
            items have not been taken.
        timeout_s: how long one run may take, from its arguments to its result, in
            seconds; then it is interrupted, and if it does not end its worker is, and
            the error is a `TaskTimeoutError`.  Such a task runs again only where
            ``retry_exceptions`` names that error or is True; each run has its own time.

    Raises:
        TypeError: not a function, or an option of the wrong type.
        ValueError: an option out of range, or one that does not exist.
    """
    if not positional:
        return functools.partial(_make_remote, given=given)
    if len(positional) > 1 or given:
        raise TypeError("write @remote, or @remote(option=value, ...)")
    return _make_remote(positional[0], {})


def _make_remote(target: Any, given: dict[str, Any]) -> Any:
    if inspect.isclass(target):
        return ActorClass(target, given)
    if isinstance(target, ActorClass):
        raise TypeError(f"{target!r} is an actor class already")
    function = _innermost(target)
    if isinstance(target, RemoteFunction) or not inspect.isroutine(function):
        raise TypeError(f"remote takes a function, not {target!r}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"{_name_of(target)} is an async function, which cannot be a task: make it"
            " a plain function that calls asyncio.run"
        )
    return RemoteFunction(target, given)


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any) -> str:
    function = _innermost(function)
    name = getattr(function, "__qualname__", None) or repr(function)
    return str(name).rpartition("<locals>.")[2]


def _key(given: dict[str, Any]) -> Any:
    """Return what tells equal options apart from others; None where nothing can."""
    key = tuple(sorted((name, type(value), value) for name, value in given.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
