"""The ``runtime_env`` option: checked, merged, written as canonical JSON.  Pure.

A runtime environment travels as one string, so that equal environments are equal text
and ``""`` is the plain one.  A task inherits the environment of whoever submits it;
what it names itself wins, variable by variable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final


def _env_vars(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"runtime_env['env_vars'] must be a dict, not {value!r}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                "runtime_env['env_vars'] maps text to text, but holds"
                f" {name!r}: {text!r}"
            )
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{name!r} cannot be an environment variable")
    return dict(value)


#: What a runtime environment may hold: key -> check, which returns the plain form.
CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {"env_vars": _env_vars}


def normalize(env: object) -> str:
    """Check a runtime environment as users write it; return it as canonical JSON.

    ``None`` and ``{}`` are the plain environment, ``""``.

    Raises:
        TypeError: not a dict, or a part of the wrong type.
        ValueError: a key that is not supported, or an impossible variable name.
    """
    if env is None:
        return ""
    if not isinstance(env, Mapping):
        raise TypeError(f"runtime_env must be a dict, not {env!r}")
    plain: dict[str, Any] = {}
    for key, value in env.items():
        check = CHECKS.get(key)
        if check is None:
            raise ValueError(_unsupported(key))
        plain[key] = check(value)
    return _canonical(plain)


def merge(parent: str, child: str) -> str:
    """Return the environment of a task that asks for ``child`` inside ``parent``."""
    if not child or not parent or child == parent:
        return child or parent
    outer, inner = json.loads(parent), json.loads(child)
    variables = {**outer.get("env_vars", {}), **inner.get("env_vars", {})}
    return _canonical({**outer, **inner, "env_vars": variables})


def _canonical(env: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in env.items() if value}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""


def _unsupported(key: object) -> str:
    near = get_close_matches(str(key), CHECKS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"runtime_env key {key!r} is not supported{hint}"
        f" (supported: {', '.join(sorted(CHECKS))})"
    )
