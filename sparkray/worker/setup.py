"""The set-up hook of a runtime environment, run once in each new worker."""

from __future__ import annotations

import base64
import importlib
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from sparkray.exceptions import RuntimeEnvSetupError


def run_hook(hook: str) -> RuntimeEnvSetupError | None:
    """Run a hook; return why that failed, None if it did not.

    Args:
        hook: as in `protocol.environments.Environment`, "" for none.
    """
    if not hook:
        return None
    try:
        _load(hook)()
    except BaseException as error:  # the worker lives on, to say what is wrong
        text = traceback.format_exc().rstrip()
        return RuntimeEnvSetupError(
            f"worker_process_setup_hook raised {type(error).__name__}: {error}\n{text}"
        )
    return None


def _load(hook: str) -> Callable[[], Any]:
    if hook.startswith("pickle:"):
        pickled: Callable[[], Any] = cloudpickle.loads(base64.b64decode(hook[7:]))
        return pickled
    module, _, name = hook.replace(":", ".").rpartition(".")
    found: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return found
