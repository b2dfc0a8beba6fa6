"""Arguments of a call on their way: what is pickled, what is a ref, what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sparkray.exceptions import NotPicklableError
from sparkray.protocol.messages import Address, Argument
from sparkray.runtime.refs import ObjectRef, collecting
from sparkray.runtime.state.objects import INLINE, Entry
from sparkray.store.explain import explain_unpicklable, way_to_unpicklable
from sparkray.store.serialize import ATOMS, Serialized, dump_atoms, serialize


class PutsArguments(Protocol):
    """Where large arguments go."""

    @property
    def inline_max_bytes(self) -> int: ...

    def put_serialized(
        self, serialized: Serialized, met: Sequence[ObjectRef], *, local: int, pins: int
    ) -> Entry: ...


def argument(where: int | str, entry: Entry, own: Address) -> Argument:
    """Describe an object that exists, for a worker that is to resolve it.

    Args:
        where: position or keyword.
        own: this process, the owner of what no other owns.
    """
    value = entry.value if entry.state == INLINE else None
    return Argument(where, entry.id, entry.owner or own, value, entry.sources or [])


class Packed:
    """Serialized arguments and the refs in them.

    Attributes:
        body: pickled ``(args, kwargs)``, empty if they are in the store.
        top: refs that are arguments themselves, by position or keyword.
        met: refs somewhere inside of arguments.
        stored: the entry of arguments too large for a message, with one pin.
    """

    __slots__ = ("body", "met", "stored", "top")

    def __init__(
        self,
        body: bytes,
        top: list[tuple[int | str, ObjectRef]] | None,
        met: list[ObjectRef],
        stored: Entry | None,
    ) -> None:
        self.body, self.top, self.met, self.stored = body, top, met, stored


class UnsendableArgument(NotPicklableError):
    """An argument cannot be pickled.

    Attributes:
        where: its position or keyword.
    """

    def __init__(self, where: int | str, call: str, reason: str) -> None:
        super().__init__(where, call, reason)
        self.where, self._call, self._reason = where, call, reason

    def __str__(self) -> str:
        return self._text(repr(self.where))

    def named(self, parameter: str) -> NotPicklableError:
        """Return the error with the parameter's name; only the caller knows it."""
        return NotPicklableError(self._text(repr(parameter)))

    def _text(self, name: str) -> str:
        argument = f"argument {name} of {self._call}"
        return f"cannot serialize {argument}: {argument}{self._reason}"


def _culprit(args: Any, kwargs: Any, call: str) -> UnsendableArgument | None:
    for where, value in (*enumerate(args), *kwargs.items()):
        if way_to_unpicklable(value, ""):
            return UnsendableArgument(where, call, explain_unpicklable(value, ""))
    return None


def pack(args: Any, kwargs: Any, name: str, store: PutsArguments) -> Packed:
    """Serialize arguments; refs at the top level are taken out.

    Raises:
        TypeError: an argument cannot be pickled; says which and why.
        ObjectStoreFullError: no room for large arguments.
    """
    if not kwargs and all(value.__class__ in ATOMS for value in args):
        body = dump_atoms((args, kwargs))
        if len(body) <= store.inline_max_bytes:
            return Packed(body, None, [], None)
    top: list[tuple[int | str, ObjectRef]] | None = None
    for index, value in enumerate(args):
        if value.__class__ is ObjectRef:
            top = top or []
            top.append((index, value))
    for keyword, value in kwargs.items():
        if value.__class__ is ObjectRef:
            top = top or []
            top.append((keyword, value))
    if top is not None:
        args, kwargs = list(args), dict(kwargs)
        for where, _ in top:
            if isinstance(where, int):
                args[where] = None
            else:
                kwargs[where] = None
        args = tuple(args)
    with collecting() as met:
        try:
            serialized = serialize((args, kwargs), f"the arguments of {name}")
        except NotPicklableError as error:
            raise _culprit(args, kwargs, name) or error from error.__cause__
    if serialized.size_bytes > store.inline_max_bytes:
        stored = store.put_serialized(serialized, met, local=0, pins=1)
        return Packed(b"", top, [], stored)
    return Packed(serialized.to_bytes(), top, met, None)
