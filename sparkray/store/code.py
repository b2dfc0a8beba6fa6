"""Code objects keep the name of their file and take their lines along, so that remote
tracebacks show them: a notebook's cell is no file, and a script is one on its own host.

cloudpickle writes ``<dynamic-code>`` instead.
"""

from __future__ import annotations

import collections
import functools
import io
import linecache
import os
import types
from collections.abc import Callable, MutableMapping
from typing import Any, Final

#: Lines of a code object that is longer stay at home.
MAX_LINES_CHARACTERS: Final = 64 * 1024


@functools.cache
def dispatch_table() -> MutableMapping[type, Any]:
    """Return the table of a subclass of cloudpickle's pickler; loads cloudpickle."""
    import cloudpickle

    known: MutableMapping[type, Any] = cloudpickle.Pickler.dispatch_table
    reduce_code = known[types.CodeType]

    def reduce(code: types.CodeType) -> Any:
        make, arguments = reduce_code(code)
        name = code.co_filename
        named = tuple(name if a == "<dynamic-code>" else a for a in arguments)
        lines = _lines_of(code)
        if not lines:
            return make, named
        return make_code, (make, named, name, code.co_firstlineno, lines)

    return collections.ChainMap({types.CodeType: reduce}, known)


def make_code(
    make: Callable[..., Any], arguments: Any, name: str, first: int, lines: list[str]
) -> Any:
    """Make a code object; its lines are known from then on if its file is not here.

    Args:
        name: of its file.
        first: the number of the first of ``lines``.
    """
    if not os.path.exists(name):
        known = linecache.cache.get(name)
        merged = list(known[2]) if known is not None and len(known) == 4 else []
        merged += ["\n"] * (first - 1 + len(lines) - len(merged))
        merged[first - 1 : first - 1 + len(lines)] = lines
        linecache.cache[name] = (sum(map(len, merged)), None, merged, name)
    return make(*arguments)


def _lines_of(code: types.CodeType) -> list[str]:
    """Return the lines of a code object, none if they are not known or very long."""
    numbers = [line for *_, line in code.co_lines() if line is not None]
    if hasattr(code, "co_positions"):  # from Python 3.11 on
        numbers += [end for _, end, *_ in code.co_positions() if end is not None]
    first, last = code.co_firstlineno, max(numbers, default=0)
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    return lines if sum(map(len, lines)) <= MAX_LINES_CHARACTERS else []


@functools.cache
def _pickler() -> Any:
    import cloudpickle

    class FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
        dispatch_table = dispatch_table()

    return FunctionPickler


def dump_function(function: Any) -> bytes:
    """Return a function or class as cloudpickle writes it, in one piece."""
    stream = io.BytesIO()
    _pickler()(stream).dump(function)
    return stream.getvalue()
