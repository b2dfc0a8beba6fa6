"""Actors: classes whose instances live in processes of their own.

    Counter = remote(Counter)       an `ActorClass`
    counter = Counter.remote()      an `ActorHandle`; the instance is made somewhere
    ref = counter.add.remote(2)     a call of an `ActorMethod`

A handle keeps its actor: when the last one is gone, and no call waits, the actor ends.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from sparkray.api import actor_options as options_
from sparkray.api import options as task_options
from sparkray.api import packages, runtime_env, session
from sparkray.api.actor_methods import (
    OF_EVERY_ACTOR,
    HandleInfo,
    MethodInfo,
    check_group,
    constructor_of,
    describe,
    method_names,
    signature_of,
    template_of,
)
from sparkray.api.signature import CallSignature
from sparkray.exceptions import ActorDiedError
from sparkray.protocol import actors as p
from sparkray.protocol.codec import encode
from sparkray.runtime import core
from sparkray.runtime.arguments import UnsendableArgument
from sparkray.runtime.functions import ActorTemplate, MethodTemplate
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.state.actor import ActorClient


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
        return CallSignature(
            constructor_of(self._cls), f"{self._cls.__name__}.__init__"
        )

    @functools.cached_property
    def _info(self) -> HandleInfo:
        cls = self._cls
        return HandleInfo(
            class_name=cls.__name__,
            methods=[describe(cls, name) for name in method_names(cls)],
            max_task_retries=self._options.max_task_retries,
            max_pending=self._options.max_pending_calls,
            in_order=self._options.in_order,
            groups=list(self._options.groups),
        )

    def _check_groups(self) -> None:
        for info in self._info.methods:
            check_group(self._info, info, info.group)

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor; returns at once, while it is being made.

        A constructor that raises shows at the first call.

        Raises:
            TypeError: the constructor does not take these arguments.
            ValueError: the name is taken.
        """
        self._init.check(args, kwargs)
        runtime = session.ensure_runtime()
        template = self._template_for(runtime)
        try:
            client, ref = runtime.actor_maker.create(template, args, kwargs)
        except UnsendableArgument as error:
            raise self._init.named(error) from error.__cause__
        if client is None:
            return get_actor(self._options.name, self._options.namespace or None)
        handle = ActorHandle(client.actor_id, self._info, ref)
        handle.__sparkray__.attach(runtime, client)
        return handle

    def options(self, **given: Any) -> ActorClass:
        """Return this class with other options; this one stays as it is.

        Raises:
            TypeError, ValueError: a wrong option.
        """
        return type(self)(self._cls, {**self._checked, **given})

    def _template_for(self, runtime: core.Runtime) -> ActorTemplate:
        if runtime is not self._runtime or self._template is None:
            task_options.check_cluster(self._checked, runtime)
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

    __slots__ = ("_bond", "_info", "_signature", "_template")

    def __init__(
        self,
        bond: _Bond,
        info: MethodInfo,
        signature: CallSignature | None,
        template: MethodTemplate,
    ) -> None:
        self._bond, self._info = bond, info
        self._signature, self._template = signature, template

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
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
        try:
            return self._bond.call(self._template, args, kwargs)
        except UnsendableArgument as error:
            if signature is None:
                raise
            raise signature.named(error) from error.__cause__

    def options(self, **given: Any) -> ActorMethod:
        """Return this method with other options.

        Raises:
            TypeError, ValueError: a wrong option.
        """
        checked = options_.check(given, options_.METHOD_CHECKS)
        owner = self._bond.info
        check_group(owner, self._info, checked.get("concurrency_group", ""))
        template = template_of(owner, self._info, checked)
        return ActorMethod(self._bond, self._info, self._signature, template)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._template.name
        raise TypeError(f"{name} runs in an actor: call .{self._info.name}.remote(...)")

    def __repr__(self) -> str:
        return f"<method {self._info.name} of {self._bond!r}>"


class _Bond:
    """What a handle knows: kept apart, for any name may be one of the user's methods.

    Args:
        ref: keeps the actor; None: this handle does not.
        cluster: where the actor lives, b"" if unknown.
    """

    __slots__ = (
        "actor_id", "client", "cluster", "info", "methods", "prepared", "ref", "runtime"
    )  # fmt: skip

    def __init__(
        self, actor_id: bytes, info: HandleInfo, ref: ObjectRef | None, cluster: bytes
    ) -> None:
        self.actor_id, self.info, self.ref = actor_id, info, ref
        self.cluster = cluster
        self.methods = {method.name: method for method in info.methods}
        self.prepared: dict[str, tuple[CallSignature | None, MethodTemplate]] = {}
        self.runtime: core.Runtime | None = None  #: which `client` belongs to
        self.client: ActorClient

    def method(self, name: str) -> ActorMethod:
        info = self.methods.get(name) or OF_EVERY_ACTOR.get(name)
        if info is None:
            raise AttributeError(
                f"{name!r} is no method of actor class {self.info.class_name}; only its"
                " methods can be called remotely, its attributes are not reachable"
            )
        known = self.prepared.get(name)
        if known is None:
            known = signature_of(self.info, info), template_of(self.info, info, {})
            self.prepared[name] = known
        return ActorMethod(self, info, *known)

    def call(self, template: MethodTemplate, args: Any, kwargs: Any) -> Any:
        runtime = core.current_or_none()
        if runtime is None or runtime is not self.runtime:
            runtime = self.join()
        return runtime.actors.call(self.client, template, self.ref, args, kwargs)

    def attach(self, runtime: core.Runtime, client: ActorClient) -> None:
        self.runtime, self.client = runtime, client

    def join(self) -> core.Runtime:
        """Return the runtime of this process, which knows the actor from now on.

        Raises:
            ActorDiedError: it is of another cluster than the actor.
        """
        has_left = self.runtime is not None and session.has_left()
        runtime = None if has_left else session.ensure_runtime()
        if runtime is None or self.cluster not in (b"", runtime.attached.cluster_id):
            raise ActorDiedError(
                f"{self!r} lived in a cluster that this process has left, or never"
                " belonged to"
            )
        if runtime is not self.runtime:
            known = runtime.actors.client_of(self.actor_id, self.info, self.ref)
            self.attach(runtime, known)
        return runtime

    def __repr__(self) -> str:
        return f"Actor({self.info.class_name}, {self.actor_id.hex()})"


class ActorHandle:
    """An actor, wherever it lives.  Can be sent, stored and compared.

    Only methods are reachable; attributes of the instance are not.
    """

    __slots__ = ("__sparkray__", "__weakref__")

    def __init__(
        self,
        actor_id: bytes,
        info: HandleInfo,
        ref: ObjectRef | None,
        cluster: bytes | None = None,
    ) -> None:
        if cluster is None:
            runtime = core.current_or_none()
            cluster = b"" if runtime is None else runtime.attached.cluster_id
        self.__sparkray__ = _Bond(actor_id, info, ref, cluster)

    def __getattr__(self, name: str) -> Any:
        if name == "__sparkray__":  # not initialized: a copy under way
            raise AttributeError(name)
        bond = self.__sparkray__
        if name == "_actor_id" and name not in bond.methods:
            return bond.actor_id
        return bond.method(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__sparkray__.methods]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ActorHandle)
            and self.__sparkray__.actor_id == other.__sparkray__.actor_id
        )

    def __hash__(self) -> int:
        return hash(self.__sparkray__.actor_id)

    def __repr__(self) -> str:
        return repr(self.__sparkray__)

    def __copy__(self) -> ActorHandle:
        return self  # a pickled copy that nobody counts would keep the actor for ever

    def __deepcopy__(self, memo: object) -> ActorHandle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        bond = self.__sparkray__
        return _load_handle, (bond.actor_id, encode(bond.info), bond.ref, bond.cluster)


def _load_handle(
    actor_id: bytes, info: bytes, ref: ObjectRef | None, cluster: bytes | None = None
) -> ActorHandle:
    known = msgspec.msgpack.decode(info, type=HandleInfo)
    return ActorHandle(actor_id, known, ref, cluster)


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
        ActorDiedError: it lived in another cluster.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill takes an actor's handle, not {actor!r:.100}")
    bond = actor.__sparkray__
    bond.join().actor_maker.kill(bond.client, no_restart=no_restart)


def handle_from(actor_id: bytes, info: bytes) -> ActorHandle:
    """Return a handle of the actor that runs here (for the runtime context)."""
    return _load_handle(actor_id, info, None)
