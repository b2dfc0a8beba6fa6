"""Code objects keep the name of their file, so that remote tracebacks show lines.

cloudpickle writes ``<dynamic-code>`` instead.
"""

from __future__ import annotations

import collections
import functools
import io
import types
from collections.abc import MutableMapping
from typing import Any


@functools.cache
def dispatch_table() -> MutableMapping[type, Any]:
    """Return the table of a subclass of cloudpickle's pickler; loads cloudpickle."""
    import cloudpickle

    known: MutableMapping[type, Any] = cloudpickle.Pickler.dispatch_table
    reduce_code = known[types.CodeType]

    def reduce(code: types.CodeType) -> Any:
        make, arguments = reduce_code(code)
        name = code.co_filename
        return make, tuple(name if a == "<dynamic-code>" else a for a in arguments)

    return collections.ChainMap({types.CodeType: reduce}, known)


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
