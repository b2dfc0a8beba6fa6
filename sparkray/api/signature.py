"""Checks the arguments of a call where it is made, not where it runs.

Most calls give a few positional arguments: for those two numbers decide, and nothing of
`inspect` runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from sparkray.runtime.arguments import UnsendableArgument

_ANY: Final = sys.maxsize
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class CallSignature:
    """What a function takes.

    Attributes:
        fewest, most: so many positional arguments alone are a valid call; the range is
            empty for functions that need a keyword.
    """

    __slots__ = ("_name", "_signature", "fewest", "most")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = _signature_of(function)
        self.fewest, self.most = _positional_range(self._signature)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check any call.

        Raises:
            TypeError: the function does not take these arguments.
        """
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            shown = _shown(self._signature)
            text = f"{self._name}{shown} cannot be called so: {error}"
            raise TypeError(text) from None

    def named(self, error: UnsendableArgument) -> Exception:
        """Return the error with the name of the parameter that it is about."""
        if self._signature is None or not isinstance(error.where, int):
            return error.named(str(error.where))
        parameters = self._signature.parameters.values()
        positional = [p for p in parameters if p.kind <= p.VAR_POSITIONAL]
        last = positional[-1]
        if last.kind is last.VAR_POSITIONAL and error.where >= len(positional) - 1:
            return error.named(f"{last.name}[{error.where - len(positional) + 1}]")
        return error.named(positional[error.where].name)


class _Dots:
    """Stands for a default that is not known here."""

    def __repr__(self) -> str:
        return "..."


def _shown(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature as a message shows it."""
    return signature.replace(
        parameters=[
            p.replace(default=_Dots()) if p.default is ... else p
            for p in signature.parameters.values()
        ]
    )


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:  # some functions written in C do not tell
        return None


def _positional_range(signature: inspect.Signature | None) -> tuple[int, int]:
    if signature is None:
        return 0, _ANY
    fewest = most = 0
    for parameter in signature.parameters.values():
        required = parameter.default is inspect.Parameter.empty
        if parameter.kind in _POSITIONAL:
            most += 1
            fewest += required
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            most = _ANY
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and required:
            return 1, 0
    return fewest, most
