"""The ``runtime_env`` option: checked, merged, written as canonical JSON.

A runtime environment travels as one string, so that equal environments are equal text
and ``""`` is the plain one.  A task inherits the environment of whoever submits it;
what it names itself wins, variable by variable.

`normalize` leaves paths of this machine in it; `packages.ship` replaces them.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import types
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import cloudpickle

from sparkray.protocol.environments import package_of

#: A hook travels with every request for a worker.
MAX_HOOK_BYTES: Final = 64 * 1024


def _env_vars(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"runtime_env['env_vars'] must be a dict, not {value!r}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                "runtime_env['env_vars'] maps text to text, but holds"
                f" {name!r}: {text!r}"
            )
        if not name or "=" in name or "\0" in name + text or _is_broken(name + text):
            raise ValueError(
                f"{name!r}: {text!r:.100} cannot be an environment variable"
            )
    return dict(value)


def _is_broken(text: str) -> bool:
    """Tell whether it holds half of a character, which nothing can send."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _working_dir(value: object) -> str:
    path = _path("runtime_env['working_dir']", value)
    if os.path.isfile(path) and not path.endswith(".zip"):
        raise ValueError(
            f"runtime_env['working_dir'] must be a directory or a .zip file: {path}"
        )
    return path


def _py_modules(value: object) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        raise TypeError(f"runtime_env['py_modules'] must be a list, not {value!r}")
    return [_py_module(item) for item in value]


def _py_module(value: object) -> str:
    what = "an item of runtime_env['py_modules']"
    if isinstance(value, types.ModuleType):
        places = [*getattr(value, "__path__", ()), getattr(value, "__file__", None)]
        if not places[0]:
            raise ValueError(f"{what} has no file: {value!r}")
        value = places[0]
    path = _path(what, value)
    if os.path.isfile(path) and not path.endswith((".zip", ".whl", ".py")):
        raise ValueError(
            f"{what} must be a directory, a .zip, a wheel or a .py file: {path}"
        )
    return path


def _path(what: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{what} must be a path, not {value!r}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    if package_of(text) is not None:
        return text
    if "://" in text:
        raise ValueError(f"{what} must be a path of this machine, not {text!r}")
    path = os.path.abspath(os.path.expanduser(text))
    if not text or "\0" in text or not os.path.exists(path):
        raise ValueError(f"{what} does not exist: {text!r}")
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise ValueError(f"{what} is neither a directory nor a file: {text!r}")
    return path


def _texts(what: str, value: object) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        raise TypeError(f"{what} must be a list of text, not {value!r}")
    for item in value:
        if not isinstance(item, str):
            raise TypeError(f"{what} must hold text, not {item!r}")
    return list(value)


def _excludes(value: object) -> list[str]:
    return _texts("runtime_env['excludes']", value)


def _pip(value: object) -> dict[str, Any]:
    if isinstance(value, (str, os.PathLike)):
        value = {"packages": _requirements(os.fspath(value))}
    elif isinstance(value, (list, tuple)):
        value = {"packages": value}
    if not isinstance(value, Mapping):
        raise TypeError(
            "runtime_env['pip'] must be a list of requirements, the path of a"
            f" requirements file or a dict, not {value!r}"
        )
    known = {"packages", "pip_check", "pip_install_options"}
    for key in value:
        if key not in known:
            raise ValueError(_unsupported(key, known, "runtime_env['pip']"))
    packages = value.get("packages", ())
    if isinstance(packages, (str, os.PathLike)):
        packages = _requirements(os.fspath(packages))
    wanted: dict[str, Any] = {
        "packages": [
            _requirement(item)
            for item in _texts("runtime_env['pip']['packages']", packages)
        ]
    }
    options = value.get("pip_install_options")
    if options:
        what = "runtime_env['pip']['pip_install_options']"
        wanted["pip_install_options"] = _texts(what, options)
    if not isinstance(check := value.get("pip_check", False), bool):
        raise TypeError(f"runtime_env['pip']['pip_check'] must be a bool: {check!r}")
    return {**wanted, **({"pip_check": True} if check else {})}


def _requirements(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file.read().splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"runtime_env['pip'] names no readable requirements file: {error}"
        ) from error
    return [line for line in lines if line and not line.startswith("#")]


def _requirement(text: str) -> str:
    """Return one requirement; a path of this machine as it is anywhere on it."""
    if not text.strip() or "\n" in text:
        raise ValueError(f"runtime_env['pip'] holds no requirement: {text!r}")
    text = text.strip()
    is_path = text.startswith((".", "/", "~"))
    return os.path.abspath(os.path.expanduser(text)) if is_path else text


def _hook(value: object) -> str:
    key = "runtime_env['worker_process_setup_hook']"
    if isinstance(value, str):
        module, _, name = value.replace(":", ".").rpartition(".")
        pickled = value.startswith("pickle:")
        if not pickled and not (module and name.isidentifier()):
            raise ValueError(f"{key} must be 'module.function', not {value!r}")
        return value
    if not callable(value):
        raise TypeError(f"{key} must be a function or the name of one, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{key} cannot be an async function: {value!r}")
    try:
        pickled_hook = cloudpickle.dumps(value)
    except Exception as error:  # whatever user classes raise
        raise TypeError(f"{key} cannot be pickled: {error}") from error
    if len(pickled_hook) > MAX_HOOK_BYTES:
        raise ValueError(
            f"{key} takes {len(pickled_hook)} bytes when pickled, of"
            f" {MAX_HOOK_BYTES} allowed: give the name of an importable function"
        )
    return "pickle:" + base64.b64encode(pickled_hook).decode()


def _config(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"runtime_env['config'] must be a dict, not {value!r}")
    known = {"setup_timeout_seconds", "eager_install"}
    for key in value:
        if key not in known:
            raise ValueError(_unsupported(key, known, "runtime_env['config']"))
    if not isinstance(eager := value.get("eager_install", True), bool):
        what = "runtime_env['config']['eager_install']"
        raise TypeError(f"{what} must be a bool, not {eager!r}")
    limit = value.get("setup_timeout_seconds", -1)
    what = "runtime_env['config']['setup_timeout_seconds']"
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"{what} must be a number, not {limit!r}")
    if limit != -1 and not 0 < limit < float("inf"):
        raise ValueError(f"{what} must be above 0, or -1 for no limit: {limit!r}")
    return {key: value[key] for key in value if key != "eager_install"}


#: What a runtime environment may hold: key -> check, which returns the plain form.
CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "config": _config,
    "env_vars": _env_vars,
    "excludes": _excludes,
    "pip": _pip,
    "py_modules": _py_modules,
    "working_dir": _working_dir,
    "worker_process_setup_hook": _hook,
}


def normalize(env: object) -> str:
    """Check a runtime environment as users write it; return it as canonical JSON.

    ``None`` and ``{}`` are the plain environment, ``""``.

    Raises:
        TypeError: not a dict, or a part of the wrong type.
        ValueError: a key that is not supported, an impossible variable name, or a file
            that is not there.
    """
    if env is None:
        return ""
    if not isinstance(env, Mapping):
        raise TypeError(f"runtime_env must be a dict, not {env!r}")
    plain: dict[str, Any] = {}
    for key, value in env.items():
        check = CHECKS.get(key) if isinstance(key, str) else None
        if check is None:
            raise ValueError(_unsupported(key, CHECKS, "runtime_env"))
        if value is not None:
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
    if "pip" in kept and not kept["pip"]["packages"]:
        del kept["pip"]
    return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""


def _unsupported(key: object, known: Any, where: str) -> str:
    near = get_close_matches(str(key), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"{where} key {key!r} is not supported{hint}"
        f" (supported: {', '.join(sorted(known))})"
    )
