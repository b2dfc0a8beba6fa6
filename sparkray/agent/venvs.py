"""Virtual environments for ``runtime_env["pip"]``, beside the node's own interpreter.

What the node's interpreter finds, sparkray included, is found in them as well, after
what they hold themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from sparkray.exceptions import RuntimeEnvSetupError
from sparkray.protocol.environments import PipWanted

#: Marks a virtual environment that was built to its end.
COMPLETE: Final = ".complete"
#: So many lines of pip's output go into an error.
SHOWN_LINES: Final = 20

_PARENT = "sparkray_parent.pth"


def python_of(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def site_packages_of(venv: str) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.join(venv, "lib", version, "site-packages")


def is_complete(venv: str) -> bool:
    return os.path.exists(os.path.join(venv, COMPLETE))


async def build(venv: str, wanted: PipWanted, environment: Mapping[str, str]) -> None:
    """Make a virtual environment and install into it.

    It is built in place, as its scripts name their interpreter by its path; one that is
    not `is_complete` is built anew.

    Args:
        environment: variables that pip sees.

    Raises:
        RuntimeEnvSetupError: pip failed; with its last lines.
    """
    shutil.rmtree(venv, ignore_errors=True)
    os.makedirs(venv, mode=0o700)
    flags = ["--system-site-packages", "--without-pip"]
    await _run([sys.executable, "-m", "venv", *flags, venv], environment, "venv")
    _join_parent(venv)
    pip = [python_of(venv), "-m", "pip", "--no-input", "--no-color"]
    if find_spec("pip") is None:
        await _run([python_of(venv), "-m", "ensurepip"], environment, "ensurepip")
    requirements = os.path.join(venv, "requirements.txt")
    with open(requirements, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in wanted.packages)
    install = ["install", "--disable-pip-version-check", *wanted.pip_install_options]
    await _run([*pip, *install, "-r", requirements], environment, "pip install")
    if wanted.pip_check:
        await _run([*pip, "check"], environment, "pip check")
    with open(os.path.join(venv, COMPLETE), "w"):
        pass


def _join_parent(venv: str) -> None:
    """Let the virtual environment find what this interpreter finds."""
    kinds = ("site-packages", "dist-packages")
    places = [os.path.abspath(p) for p in sys.path if p.rstrip("/").endswith(kinds)]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    with open(os.path.join(site_packages_of(venv), _PARENT), "w") as file:
        file.writelines(lines)


async def _run(
    command: Sequence[str], environment: Mapping[str, str], what: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env={**environment, "PYTHONNOUSERSITE": "1"},
    )
    try:
        output, _ = await process.communicate()
    except BaseException:  # cancelled: it took too long, or the node ends
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        raise RuntimeEnvSetupError(
            f"{what} failed with exit code {process.returncode}; its last lines:\n"
            + "\n".join(lines)
        )
