"""Runtime environments as they travel, and packages in the head's KV.  Pure.

    NAMESPACE   "NAME"      a `Manifest`
                "NAME/0"    the first piece of the file, "NAME/1" the next...
                "NAME@JOB"  that job uses it; written before anything else of it

A package is a zip or a wheel, named by the hash of its bytes: whoever has the name can
tell the right file.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

#: Namespace of packages in the head's key-value store.
NAMESPACE: Final = "sparkray.packages"
#: Pieces fit into one message with room to spare.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: What is larger does not travel.
MAX_PACKAGE_BYTES: Final = 512 * 1024 * 1024
#: How long a runtime environment may take to set up, unless it says otherwise.
SETUP_TIMEOUT_S: Final = 600.0

_PACKAGE = re.compile(r"package:([0-9a-f]{64}\.(?:zip|whl))")
_USE: Final = b"@"


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What the head keeps of a package beside its pieces."""

    pieces: int
    complete: bool  #: False: somebody is bringing the pieces


class PipWanted(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Packages to install."""

    packages: list[str] = []
    pip_install_options: list[str] = []
    pip_check: bool = False


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How an environment is set up."""

    setup_timeout_seconds: float = SETUP_TIMEOUT_S  #: -1: no limit


class Environment(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A runtime environment that can be set up anywhere."""

    env_vars: dict[str, str] = {}
    working_dir: str = ""  #: address of a package, "" for none
    py_modules: list[str] = []  #: addresses of packages
    pip: PipWanted | None = None
    worker_process_setup_hook: str = ""  #: ``module.name``, or ``pickle:`` and base64
    config: Config = Config()


def read(text: str) -> Environment:
    """Return the environment that canonical JSON describes.

    Raises:
        ValueError: it is none, or one of another version.
    """
    if not text:
        return Environment()
    environment = msgspec.json.decode(text, type=Environment)
    for address in (environment.working_dir, *environment.py_modules):
        if address and package_of(address) is None:
            raise ValueError(f"{address!r} is no package")
    return environment


def address_of(name: str) -> str:
    """Return how a runtime environment refers to a package."""
    return f"package:{name}"


def package_of(address: Any) -> str | None:
    """Return the name of the package that is meant; None if ``address`` is none."""
    found = _PACKAGE.fullmatch(address) if isinstance(address, str) else None
    return found[1] if found else None


def manifest_key(name: str) -> bytes:
    return name.encode()


def piece_key(name: str, number: int) -> bytes:
    return f"{name}/{number}".encode()


def use_key(name: str, job_id: bytes) -> bytes:
    return name.encode() + _USE + job_id.hex().encode()


def use_of(key: bytes) -> tuple[bytes, bytes | None]:
    """Return the package that a key belongs to, and the job if the key notes a use."""
    name, is_use, job = key.partition(_USE)
    if is_use:
        return name, bytes.fromhex(job.decode())
    return key.partition(b"/")[0], None


def packages_in(runtime_env: str) -> list[str]:
    """Return the names of the packages that an environment as it travels needs."""
    return _PACKAGE.findall(runtime_env)
