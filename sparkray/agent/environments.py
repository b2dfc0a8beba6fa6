"""Sets up runtime environments on this node, each part once.

    <session>/environments/packages/HASH.zip/   unpacked; complete if it is there
                          /venvs/HASH/          complete if it holds `venvs.COMPLETE`

Fetches packages from the head's key-value store; knows nothing of workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sparkray.agent import venvs
from sparkray.exceptions import ProtocolError, RuntimeEnvSetupError, SparkrayError
from sparkray.protocol import control
from sparkray.protocol.environments import (
    NAMESPACE,
    Environment,
    Manifest,
    PipWanted,
    manifest_key,
    package_of,
    piece_key,
    read,
)

_log = logging.getLogger(__name__)

#: How long a package may be missing: a driver attaches before it uploads.
MISSING_S: Final = 5.0
#: How long an upload may make no progress.
STALLED_S: Final = 30.0
POLL_S: Final = 0.05
#: How long a virtual environment that could not be built is not tried again.
RETRY_S: Final = 10.0

#: A variable of this node in the value of another.
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")

#: Calls the head: (method, request) -> answer.
HeadCall = Callable[[str, Any], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An environment as the zygote and the workers need it."""

    python: str = sys.executable
    venv: str = ""  #: directory of its virtual environment, "" for none
    import_path: tuple[str, ...] = ()  #: to be searched before all else
    working_dir: str = ""
    setup_hook: str = ""


class EnvironmentDesk:
    """Environments by their canonical JSON.

    Args:
        directory: where they are kept; made when it is needed.
        call_head: asks the head.
    """

    def __init__(self, directory: str, call_head: HeadCall) -> None:
        self._directory, self._call_head = directory, call_head
        self._prepared: dict[str, Prepared] = {"": Prepared()}
        #: When building a virtual environment failed, and why.
        self._failed: dict[str, tuple[float, str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}  #: by what they build

    def ready(self, runtime_env: str) -> Prepared | None:
        """Return an environment that needs no (more) work, None for any other.

        Raises:
            RuntimeEnvSetupError: it is not understood.
        """
        known = self._prepared.get(runtime_env)
        if known is None:
            wanted = understood(runtime_env)
            if not (wanted.working_dir or wanted.py_modules or wanted.pip):
                known = Prepared(setup_hook=wanted.worker_process_setup_hook)
                self._prepared[runtime_env] = known
        return known

    async def prepare(self, runtime_env: str) -> Prepared:
        """Set an environment up.

        Raises:
            RuntimeEnvSetupError: that failed, or took too long.
        """
        wanted = understood(runtime_env)
        limit_s = wanted.config.setup_timeout_seconds
        work = self._prepare(wanted)
        try:
            made = await asyncio.wait_for(work, None if limit_s < 0 else limit_s)
        except asyncio.TimeoutError:
            raise RuntimeEnvSetupError(
                f"setting up the runtime environment took more than {limit_s:g} s"
                " (runtime_env['config']['setup_timeout_seconds'])"
            ) from None
        except RuntimeEnvSetupError:
            raise
        except (SparkrayError, OSError) as error:
            raise RuntimeEnvSetupError(
                f"cannot set up the runtime environment: {error}"
            ) from error
        self._prepared[runtime_env] = made
        return made

    async def _prepare(self, wanted: Environment) -> Prepared:
        working_dir, import_path = "", []
        if wanted.working_dir:
            working_dir = await self.package(wanted.working_dir)
            import_path.append(working_dir)
        for address in wanted.py_modules:
            import_path += _places(await self.package(address))
        python, venv = sys.executable, ""
        if wanted.pip is not None:
            venv = await self._venv(wanted)
            python = venvs.python_of(venv)
            import_path.append(venvs.site_packages_of(venv))
        hook = wanted.worker_process_setup_hook
        return Prepared(python, venv, tuple(import_path), working_dir, hook)

    # --- packages ---------------------------------------------------------------------

    async def package(self, address: str) -> str:
        """Return the directory where a package is unpacked; the first use fetches it.

        Raises:
            RuntimeEnvSetupError: it is not in the head, or damaged.
        """
        name = package_of(address)
        assert name is not None, address
        target = os.path.join(self._directory, "packages", name)
        async with self._lock(target):
            if not os.path.isdir(target):
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                await self._fetch(name, target)
        return target

    async def _fetch(self, name: str, target: str) -> None:
        draft = f"{target}.{os.urandom(4).hex()}"
        archive = f"{draft}.part"
        try:
            await self._download(name, archive)
            from sparkray.agent.archives import unpack  # no part of a node's start

            await asyncio.to_thread(unpack, archive, draft)
            os.rename(draft, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(archive)
            shutil.rmtree(draft, ignore_errors=True)

    async def _download(self, name: str, path: str) -> None:
        manifest = await self._manifest(name)
        digest = hashlib.sha256()
        with open(path, "xb") as file:
            for number in range(manifest.pieces):
                piece = await self._value(piece_key(name, number))
                if piece is None:
                    raise RuntimeEnvSetupError(
                        f"piece {number} of package {name} is not in the head any more"
                    )
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != name.partition(".")[0]:
            raise RuntimeEnvSetupError(
                f"package {name} of the runtime environment arrived damaged"
            )

    async def _manifest(self, name: str) -> Manifest:
        """Wait until a package is in the head as a whole."""
        loop = asyncio.get_running_loop()
        seen, since = -1, loop.time()
        while True:
            value = await self._value(manifest_key(name))
            if value is not None:
                manifest = _manifest(name, value)
                if manifest.complete:
                    return manifest
                prefix = piece_key(name, 0)[:-1]
                request = control.KVKeys(NAMESPACE, prefix)
                there = len((await self._call_head("KVKeys", request)).keys)
                if there != seen:
                    seen, since = there, loop.time()
            limit_s = MISSING_S if value is None else STALLED_S
            if loop.time() - since > limit_s:
                raise RuntimeEnvSetupError(
                    f"package {name} of the runtime environment is not in the head, or"
                    " only a part of it: was its upload interrupted?"
                )
            await asyncio.sleep(POLL_S)

    async def _value(self, key: bytes) -> bytes | None:
        answer = await self._call_head("KVGet", control.KVGet(NAMESPACE, key))
        value: bytes | None = answer.value
        return value

    # --- virtual environments ---------------------------------------------------------

    async def _venv(self, wanted: Environment) -> str:
        pip = wanted.pip
        assert pip is not None
        variables = {
            name: value
            for name, value in expanded(wanted.env_vars, os.environ).items()
            if name.startswith("PIP_")
        }
        key = msgspec.json.encode([pip, sorted(variables.items())])
        name = hashlib.sha256(key).hexdigest()[:16]
        target = os.path.join(self._directory, "venvs", name)
        async with self._lock(target):
            if not venvs.is_complete(target):
                await self._build(target, pip, {**os.environ, **variables})
        return target

    async def _build(
        self, target: str, pip: PipWanted, variables: Mapping[str, str]
    ) -> None:
        """Build a virtual environment, unless that failed a moment ago."""
        now = asyncio.get_running_loop().time
        since, error = self._failed.get(target, (0.0, ""))
        if error and now() - since < RETRY_S:
            raise RuntimeEnvSetupError(
                f"{error}\n(that was a moment ago; {RETRY_S:g} s after a failure it is"
                " tried again)"
            )
        try:
            await venvs.build(target, pip, variables)
        except RuntimeEnvSetupError as failure:
            self._failed[target] = now(), str(failure)
            raise
        self._failed.pop(target, None)

    def _lock(self, target: str) -> asyncio.Lock:
        return self._locks.setdefault(target, asyncio.Lock())


def expanded(given: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """Return variables with each ``${NAME}`` in them replaced by its value in ``base``,
    by nothing if it has none there."""
    return {
        name: _REFERENCE.sub(lambda found: base.get(found[1], ""), text)
        for name, text in given.items()
    }


def understood(runtime_env: str) -> Environment:
    """Return what canonical JSON describes.

    Raises:
        RuntimeEnvSetupError: nothing that this node supports.
    """
    try:
        return read(runtime_env)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RuntimeEnvSetupError(
            f"this node does not understand the runtime environment: {error}"
        ) from error


def _places(directory: str) -> list[str]:
    """Return where modules of an unpacked package are found.

    A package is imported by its name.  A single directory that is none is a directory
    of modules: these are found, too.
    """
    names = os.listdir(directory)
    inner = os.path.join(directory, names[0]) if len(names) == 1 else ""
    is_plain = os.path.isdir(inner) and "__init__.py" not in os.listdir(inner)
    return [directory, inner] if is_plain else [directory]


def _manifest(name: str, value: bytes) -> Manifest:
    try:
        return msgspec.msgpack.decode(value, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"package {name} has no good manifest: {error}") from error
