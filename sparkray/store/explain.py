"""Finds which part of a value cannot be pickled, and by which names it is reached."""

from __future__ import annotations

import pickle
import types
from collections.abc import Iterator
from typing import Any, Final

_MAX_DEPTH: Final = 12
_MAX_PICKLES: Final = 2_000
_MAX_ITEMS: Final = 200


def explain_unpicklable(value: Any, name: str) -> str:
    """Return e.g. ``f -> closure variable 'x' -> attribute 'lock': cannot pickle ...``.

    Looks through closures, used globals, defaults, attributes, slots and containers, as
    far as ``_MAX_DEPTH`` steps.
    """
    way = way_to_unpicklable(value, name)
    names = [step for step, _, _ in way] or [name]
    reason = _describe(way[-1][2]) if way else "nothing in it fails alone"
    return f"{' -> '.join(names)}: {reason}"


def way_to_unpicklable(value: Any, name: str) -> list[tuple[str, Any, BaseException]]:
    """Return the name, object and error of each step from ``value`` to the part in it
    that cannot be pickled; an empty list if ``value`` can be.
    """
    search = _Search()
    error = search.failure(value)
    if error is None:
        return []
    way = [(name, value, error)]
    while len(way) <= _MAX_DEPTH:
        found = search.culprit_in(way[-1][1])
        if found is None:
            break
        way.append(found)
    return way


def own_name(value: Any) -> str:
    """Return what a value calls itself, or e.g. ``a list``."""
    try:
        name = getattr(value, "__qualname__", None)
    except Exception:  # user code runs in here
        name = None
    return name if isinstance(name, str) else f"a {type(value).__qualname__}"


def _describe(error: BaseException) -> str:
    text = str(error)
    kind = type(error).__name__
    plain = isinstance(error, (TypeError, pickle.PicklingError)) and text
    return text if plain else f"{kind}: {text}" if text else kind


class _Search:
    """One search; bounded in pickles tried, and never looks twice at one object."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # ids stay unique while their objects live
        self._pickles_left = _MAX_PICKLES

    def failure(self, value: Any) -> BaseException | None:
        """Return the error of pickling ``value``, None if it works."""
        import cloudpickle

        self._pickles_left -= 1
        try:
            cloudpickle.dumps(value, protocol=5, buffer_callback=lambda _: None)
        except Exception as error:  # user code runs in here
            return error
        return None

    def culprit_in(self, value: Any) -> tuple[str, Any, BaseException] | None:
        """Return the first part of ``value`` that fails: name, itself, error."""
        for step, part in _parts_found(value):
            if self._pickles_left <= 0:
                return None
            if id(part) in self._seen or _is_atom(part):
                continue
            self._seen.add(id(part))
            self._kept.append(part)
            error = self.failure(part)
            if error is not None:
                return step, part, error
        return None


def _is_atom(value: Any) -> bool:
    return value is None or type(value) in (
        bool, int, float, complex, str, bytes, bytearray, types.ModuleType,
    )  # fmt: skip


def _parts_found(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of ``value``, up to where its own code raises."""
    try:
        yield from _parts(value)
    except Exception:  # user code runs in here
        return


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling ``value`` would pickle too, each with its name."""
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield "its object", value.__self__
        yield "its function", value.__func__
    elif isinstance(value, type):
        yield from _class_parts(value)
    elif isinstance(value, dict):
        yield from _dict_parts(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from _item_parts(value)
    yield from _object_parts(value)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:  # still empty
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, default in zip(reversed(arguments), reversed(defaults), strict=False):
        yield f"default of argument {name!r}", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f"default of argument {name!r}", default
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield "wrapped function", wrapped


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _class_parts(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in list(vars(cls).items())[:_MAX_ITEMS]:
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        if not name.startswith("__") or isinstance(member, types.FunctionType):
            yield f"class attribute {name!r}", member


def _dict_parts(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in list(value.items())[:_MAX_ITEMS]:
        yield f"key {_short(key)}", key
        yield f"value of key {_short(key)}", item


def _item_parts(value: Any) -> Iterator[tuple[str, Any]]:
    ordered = isinstance(value, (list, tuple))
    for index, item in enumerate(list(value)[:_MAX_ITEMS]):
        yield (f"item {index}" if ordered else f"element {_short(item)}"), item


def _object_parts(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, type):
        for name, item in list(attributes.items())[:_MAX_ITEMS]:
            yield f"attribute {name!r}", item
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                yield f"attribute {name!r}", getattr(value, name)
            except AttributeError:
                continue
    if isinstance(value, BaseException):
        yield "args", value.args


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # user code runs in here
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."
