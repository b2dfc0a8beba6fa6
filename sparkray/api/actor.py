"""Actors: classes whose instances live in processes of their own.

    Counter = remote(Counter)       an `ActorClass`
    counter = Counter.remote()      an `ActorHandle`; the instance is made somewhere
    ref = counter.add.remote(2)     a call of an `ActorMethod`

A handle keeps its actor: when the last one is gone, and no call waits, the actor ends.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import cloudpickle
import msgspec

from sparkray.api import actor_options as options_
from sparkray.api import packages, runtime_env, session
from sparkray.api.options import DYNAMIC, STREAMING
from sparkray.api.signature import CallSignature
from sparkray.exceptions import ActorDiedError
from sparkray.protocol import actors as p
from sparkray.protocol.codec import encode
from sparkray.runtime import core
from sparkray.runtime.functions import ActorTemplate, MethodTemplate
from sparkray.runtime.refs import ObjectRef

_OF_EVERY_OBJECT: Final = frozenset(dir(object))
_OPTIONS_ATTRIBUTE: Final = "__sparkray_method_options__"


class MethodInfo(msgspec.Struct, array_like=True):
    """One method of a class, as its handles need it."""

    name: str
    parameters: list[tuple[str, int, bool]]  #: name, kind, has a default
    num_returns: int
    max_retries: int | None
    retry_exceptions: bytes  #: pickled classes, b"" for none, b"1" for all
    group: str
    backpressure: int
    known: bool  #: whether the signature could be read


class HandleInfo(msgspec.Struct, array_like=True):
    """What a handle is made from, wherever it goes."""

    class_name: str
    methods: list[MethodInfo]
    max_task_retries: int
    max_pending: int
    in_order: bool
    groups: list[str] = []  #: names of its concurrency groups


def method(**given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a method of an actor class its own options.

    Args:
        num_returns: how many refs a call returns, ``"streaming"`` or ``"dynamic"``.
        max_task_retries: how often a call is tried again when the actor restarts.
        retry_exceptions: whether, or for which exceptions, a call is tried again.
        concurrency_group: the group whose threads or slots it uses.

    Raises:
        TypeError, ValueError: a wrong option.
    """
    checked = options_.check(given, options_.METHOD_CHECKS)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _OPTIONS_ATTRIBUTE, checked)
        return function

    return decorate


class ActorClass:
    """A class that is instantiated somewhere in the cluster, by `remote`.

    Args:
        cls: the user's class; it stays as it is.
        given: options as for `sparkray.remote`.
    """

    def __init__(self, cls: type, given: Mapping[str, Any]) -> None:
        self._cls = cls
        self._checked = options_.check(given, options_.CHECKS)
        self._options = options_.resolve(self._checked)
        self._prepare()
        self._check_groups()

    def _prepare(self) -> None:
        cls = self._cls
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__
        self.__qualname__, self.__module__ = cls.__qualname__, cls.__module__
        self._runtime: core.Runtime | None = None
        self._template: ActorTemplate | None = None

    # Looked at when first needed: a class that names itself in its methods is not
    # complete yet while it is being unpickled.

    @functools.cached_property
    def _init(self) -> CallSignature:
        return CallSignature(_init_of(self._cls), f"{self._cls.__name__}.__init__")

    @functools.cached_property
    def _info(self) -> HandleInfo:
        cls = self._cls
        return HandleInfo(
            class_name=cls.__name__,
            methods=[_info(cls, name) for name in _method_names(cls)],
            max_task_retries=self._options.max_task_retries,
            max_pending=self._options.max_pending_calls,
            in_order=self._options.in_order,
            groups=list(self._options.groups),
        )

    def _check_groups(self) -> None:
        for info in self._info.methods:
            _check_group(self._info, info.name, info.group)

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor; returns at once, while it is being made.

        A constructor that raises shows at the first call.

        Raises:
            TypeError: the constructor does not take these arguments.
            ValueError: the name is taken.
        """
        self._init.check(args, kwargs)
        runtime = session.ensure_runtime()
        template = self._template_for(runtime)
        actor_id, ref, existing = runtime.actors.create(template, args, kwargs)
        if not existing:
            return get_actor(self._options.name, self._options.namespace or None)
        return ActorHandle(actor_id, self._info, ref)

    def options(self, **given: Any) -> ActorClass:
        """Return this class with other options; this one stays as it is.

        Raises:
            TypeError, ValueError: a wrong option.
        """
        return ActorClass(self._cls, {**self._checked, **given})

    def _template_for(self, runtime: core.Runtime) -> ActorTemplate:
        if runtime is not self._runtime or self._template is None:
            chosen = self._options
            env = chosen.runtime_env
            if env:
                env = packages.ship(runtime, env)
                env = runtime_env.merge(session.inherited_env(runtime), env)
            self._template = ActorTemplate(
                self._cls,
                class_name=self._cls.__name__,
                handle=encode(self._info),
                name=chosen.name,
                namespace=chosen.namespace,
                detached=chosen.detached,
                get_if_exists=chosen.get_if_exists,
                resources=chosen.resources,
                runtime_env=env,
                strategy=chosen.strategy,
                max_restarts=chosen.max_restarts,
                max_concurrency=chosen.max_concurrency,
                groups=chosen.groups,
                method_groups={},
                max_pending=chosen.max_pending_calls,
                in_order=chosen.in_order,
                inherits=chosen.inherits,
            )
            self._runtime = runtime
        return self._template

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        name = self._cls.__name__
        raise TypeError(
            f"{name} is an actor class and cannot be inherited from: inherit from the"
            " plain class, and make both remote"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._cls.__name__
        raise TypeError(f"{name} is an actor class: make one with {name}.remote(...)")

    def __getstate__(self) -> tuple[type, dict[str, Any]]:
        return self._cls, packages.portable(self._checked)

    def __setstate__(self, state: tuple[type, dict[str, Any]]) -> None:
        self._cls, self._checked = state
        self._options = options_.resolve(self._checked)
        self._prepare()

    def __repr__(self) -> str:
        return f"<actor class {self._cls.__name__}>"


class ActorMethod:
    """A method of one actor: call `remote`."""

    __slots__ = ("_handle", "_info", "_signature", "_template")

    def __init__(
        self,
        handle: ActorHandle,
        info: MethodInfo,
        signature: CallSignature | None,
        template: MethodTemplate,
    ) -> None:
        self._handle, self._info = handle, info
        self._signature, self._template = signature, template

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return as `RemoteFunction.remote` does.

        Raises:
            TypeError: it does not take these arguments.
            PendingCallsLimitExceeded: ``max_pending_calls`` of them wait already.
        """
        signature = self._signature
        if signature is not None and (
            kwargs or not signature.fewest <= len(args) <= signature.most
        ):
            signature.check(args, kwargs)
        return self._handle._call(self._template, args, kwargs)

    def options(self, **given: Any) -> ActorMethod:
        """Return this method with other options.

        Raises:
            TypeError, ValueError: a wrong option.
        """
        checked = options_.check(given, options_.METHOD_CHECKS)
        group = checked.get("concurrency_group", "")
        _check_group(self._handle._info, self._info.name, group)
        template = _template(self._handle._info, self._info, checked)
        return ActorMethod(self._handle, self._info, self._signature, template)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._template.name
        raise TypeError(f"{name} runs in an actor: call .{self._info.name}.remote(...)")

    def __repr__(self) -> str:
        return f"<method {self._info.name} of {self._handle!r}>"


class ActorHandle:
    """An actor, wherever it lives.  Can be sent, stored and compared.

    Only methods are reachable; attributes of the instance are not.
    """

    def __init__(
        self, actor_id: bytes, info: HandleInfo, ref: ObjectRef | None
    ) -> None:
        self._actor_id = actor_id
        self._info = info
        self._ref = ref  #: keeps the actor; None: this handle does not
        runtime = core.current_or_none()
        self._cluster = runtime.attached.cluster_id if runtime is not None else b""
        self._runtime: core.Runtime | None = None
        self._client: Any = None
        self._prepared: dict[str, tuple[CallSignature | None, MethodTemplate]] = {}
        self._methods = {method_info.name: method_info for method_info in info.methods}

    def __getattr__(self, name: str) -> ActorMethod:
        info = self.__dict__.get("_methods", {}).get(name)
        if info is None:
            class_name = self.__dict__["_info"].class_name if self.__dict__ else "?"
            raise AttributeError(
                f"{name!r} is no method of actor class {class_name}; only its methods"
                " can be called remotely, its attributes are not reachable"
            )
        known = self._prepared.get(name)
        if known is None:
            known = _signature(self._info, info), _template(self._info, info, {})
            self._prepared[name] = known
        return ActorMethod(self, info, *known)

    def _call(self, template: MethodTemplate, args: Any, kwargs: Any) -> Any:
        runtime = core.current_or_none()
        if runtime is None or runtime is not self._runtime:
            runtime = session.ensure_runtime()
            if self._cluster not in (b"", runtime.attached.cluster_id):
                raise ActorDiedError(f"{self!r} lived in a cluster that was left")
            self._client = runtime.actors.client_of(
                self._actor_id, self._info, self._ref
            )
            self._runtime = runtime
        return runtime.actors.call(self._client, template, self._ref, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._actor_id == other._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"Actor({self._info.class_name}, {self._actor_id.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_handle, (self._actor_id, encode(self._info), self._ref)


def _load_handle(actor_id: bytes, info: bytes, ref: ObjectRef | None) -> ActorHandle:
    return ActorHandle(actor_id, msgspec.msgpack.decode(info, type=HandleInfo), ref)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return the actor of a name.  The handle does not keep the actor alive.

    Args:
        namespace: where to look; default: that of this job.

    Raises:
        ValueError: no such actor; names the namespace that was searched.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"get_actor takes the name of an actor, not {name!r}")
    runtime = session.ensure_runtime()
    request = p.GetActor(name, namespace or runtime.namespace)
    found: p.NamedActor = runtime.head_call("GetActor", request)
    return _load_handle(found.row.actor_id, found.handle, None)


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of living actors.

    Args:
        all_namespaces: return ``{"name": ..., "namespace": ...}`` of every namespace,
            instead of the names of this job's.
    """
    runtime = session.ensure_runtime()
    listed: p.ActorList = runtime.head_call("ListActors", p.ListActors())
    rows = [row for row in listed.actors if row.name and row.state != p.DEAD]
    if all_namespaces:
        return [{"name": row.name, "namespace": row.namespace} for row in rows]
    return [row.name for row in rows if row.namespace == runtime.namespace]


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor now; its calls fail with `ActorDiedError`.

    Args:
        no_restart: False lets it start again if ``max_restarts`` allows it.

    Raises:
        ValueError: ``actor`` is no handle.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill takes an actor's handle, not {actor!r:.100}")
    session.ensure_runtime().actors.kill(actor._actor_id, no_restart=no_restart)


def handle_from(actor_id: bytes, info: bytes) -> ActorHandle:
    """Return a handle of the actor that runs here (for the runtime context)."""
    return _load_handle(actor_id, info, None)


# --- classes as data ---


def _init_of(cls: type) -> Callable[..., Any]:
    """Return a stand-in with the signature of the constructor, without self."""
    init = cls.__init__  # type: ignore[misc]
    if init is object.__init__:
        return lambda: None
    return _Bound(init)


class _Bound:
    """A function without its first parameter, for `inspect.signature`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__signature__ = _without_first(function)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None


def _without_first(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _method_names(cls: type) -> list[str]:
    """Return what can be called: all but what every object has."""
    names = []
    for name in dir(cls):
        if name in _OF_EVERY_OBJECT:
            continue
        static = inspect.getattr_static(cls, name)
        if name == "__class_getitem__" or isinstance(static, type):
            continue
        if callable(getattr(cls, name, None)):
            names.append(name)
    return names


def _info(cls: type, name: str) -> MethodInfo:
    static = inspect.getattr_static(cls, name)
    function: Any = getattr(cls, name)
    given = getattr(function, _OPTIONS_ATTRIBUTE, {})
    signature: inspect.Signature | None
    if isinstance(static, (staticmethod, classmethod)):
        try:
            signature = inspect.signature(function)
        except ValueError:
            signature = None
    else:
        signature = _without_first(function)
    parameters = [
        (q.name, int(q.kind), q.default is not inspect.Parameter.empty)
        for q in (signature.parameters.values() if signature else ())
    ]
    is_generator = inspect.isgeneratorfunction(function)
    is_generator = is_generator or inspect.isasyncgenfunction(function)
    returns = _returns(given.get("num_returns"), is_generator)
    return MethodInfo(
        name=name,
        parameters=parameters,
        num_returns=returns,
        max_retries=given.get("max_task_retries"),
        retry_exceptions=_pickle_classes(given.get("retry_exceptions", False)),
        group=given.get("concurrency_group", ""),
        backpressure=given.get("generator_backpressure_num_objects", 0),
        known=signature is not None,
    )


def _returns(asked: object, is_generator: bool) -> int:
    if asked is None:
        return STREAMING if is_generator else 1
    if isinstance(asked, str):
        return STREAMING if asked == "streaming" else DYNAMIC
    assert isinstance(asked, int)
    return asked


def _pickle_classes(classes: bool | list[Any] | tuple[Any, ...]) -> bytes:
    if isinstance(classes, bool):
        return b"1" if classes else b""
    return bytes(cloudpickle.dumps(tuple(classes)))


def _classes(pickled: bytes) -> bool | tuple[type[BaseException], ...]:
    if pickled in (b"", b"1"):
        return bool(pickled)
    classes: tuple[type[BaseException], ...] = cloudpickle.loads(pickled)
    return classes


def _signature(owner: HandleInfo, info: MethodInfo) -> CallSignature | None:
    if not info.known:
        return None
    parameters = [
        inspect.Parameter(
            name,
            inspect._ParameterKind(kind),
            default=... if has_default else inspect.Parameter.empty,
        )
        for name, kind, has_default in info.parameters
    ]
    stand_in = _Bound(lambda self: None)
    stand_in.__signature__ = inspect.Signature(parameters)
    return CallSignature(stand_in, f"{owner.class_name}.{info.name}")


def _check_group(owner: HandleInfo, method_name: str, group: str) -> None:
    if group and group not in owner.groups:
        raise ValueError(
            f"{owner.class_name}.{method_name} names the concurrency group {group!r},"
            " which concurrency_groups does not list"
        )


def _template(
    owner: HandleInfo, info: MethodInfo, given: Mapping[str, Any]
) -> MethodTemplate:
    retries = given.get("max_task_retries", info.max_retries)
    exceptions = given.get("retry_exceptions")
    if exceptions is None:
        exceptions = _classes(info.retry_exceptions)
    elif not isinstance(exceptions, bool):
        exceptions = tuple(exceptions)
    returns = given.get("num_returns")
    generates = info.num_returns == STREAMING
    return MethodTemplate(
        given.get("name") or f"{owner.class_name}.{info.name}",
        info.name,
        num_returns=info.num_returns
        if returns is None
        else _returns(returns, generates),
        max_retries=owner.max_task_retries if retries is None else retries,
        retry_exceptions=exceptions,
        group=given.get("concurrency_group", info.group),
        backpressure=given.get("generator_backpressure_num_objects", info.backpressure),
    )
