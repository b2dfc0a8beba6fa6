"""Actor classes as data: what a handle must know of the methods of its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import cloudpickle
import msgspec

from sparkray.api import actor_options as options_
from sparkray.api.options import DYNAMIC, STREAMING
from sparkray.api.signature import CallSignature
from sparkray.runtime.functions import MethodTemplate

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
    is_async: bool
    timeout_s: float = 0.0  #: how long one call may run; 0 for no limit


class HandleInfo(msgspec.Struct, array_like=True):
    """What a handle is made from, wherever it goes."""

    class_name: str
    methods: list[MethodInfo]
    max_task_retries: int
    max_pending: int
    in_order: bool
    groups: list[str] = []  #: names of its concurrency groups


def _of_every_actor(name: str, *, known: bool) -> MethodInfo:
    return MethodInfo(
        name=name,
        parameters=[],
        num_returns=1,
        max_retries=None,
        retry_exceptions=b"",
        group="",
        backpressure=0,
        known=known,
        is_async=False,
    )


#: What can be called on any actor, by Ray's names: True once it is made; end it; call
#: a function with the instance and further arguments.
OF_EVERY_ACTOR: Final = {
    "__ray_ready__": _of_every_actor("__ray_ready__", known=True),
    "__ray_terminate__": _of_every_actor("__ray_terminate__", known=True),
    "__ray_call__": _of_every_actor("__ray_call__", known=False),
}


def method(**given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a method of an actor class its own options.

    Args:
        num_returns: how many refs a call returns, ``"streaming"`` or ``"dynamic"``.
        max_task_retries: how often a call is tried again when the actor restarts.
        retry_exceptions: whether, or for which exceptions, a call is tried again.
        concurrency_group: the group whose threads or slots it uses.
        timeout_s: how long one call may run, in seconds; then it is interrupted, and if
            it does not end its actor is, which restarts as ``max_restarts`` says.

    Raises:
        TypeError, ValueError: a wrong option.
    """
    checked = options_.check(given, options_.METHOD_CHECKS)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _OPTIONS_ATTRIBUTE, checked)
        return function

    return decorate


def constructor_of(cls: type) -> Callable[..., Any]:
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


def method_names(cls: type) -> list[str]:
    """Return what can be called: all but what every object has."""
    names = []
    for name in dir(cls):
        if name in _OF_EVERY_OBJECT:
            continue
        static = inspect.getattr_static(cls, name)
        if name == "__class_getitem__" or isinstance(static, type):
            continue
        try:
            found = callable(getattr(cls, name, None))
        except Exception as error:  # a metaclass of the user's
            raise TypeError(
                f"{cls.__name__}.{name} cannot be looked at: {error}"
            ) from error
        if found:
            names.append(name)
    return names


def describe(cls: type, name: str) -> MethodInfo:
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
        is_async=inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function),
        timeout_s=float(given.get("timeout_s", 0)),
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


def signature_of(owner: HandleInfo, info: MethodInfo) -> CallSignature | None:
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


def check_group(owner: HandleInfo, info: MethodInfo, group: str) -> None:
    """Check that a method may run in a concurrency group.

    Raises:
        ValueError: the class has no such group, or only for blocking methods.
    """
    if not group:
        return
    name = f"{owner.class_name}.{info.name}"
    if group not in owner.groups:
        raise ValueError(
            f"{name} names the concurrency group {group!r},"
            " which concurrency_groups does not list"
        )
    blocking = [m.name for m in owner.methods if m.group == group and not m.is_async]
    if info.is_async and blocking:
        raise ValueError(
            f"{name} is async, but the concurrency group {group!r} runs blocking"
            f" methods ({', '.join(blocking)}) on threads: give it another group"
        )


def template_of(
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
        timeout_s=float(given.get("timeout_s", info.timeout_s)),
    )
