"""Directories and files as zips that are equal byte by byte when their contents are.

Symbolic links are followed, since what they point to may not exist elsewhere; links
that lead nowhere or back to where they are, and sockets, pipes and devices, are left
out, as are ``.git`` and ``__pycache__``.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

from sparkray.protocol import archives
from sparkray.protocol.environments import MAX_PACKAGE_BYTES

#: Never of use elsewhere.
LEFT_OUT: Final = frozenset([".git", "__pycache__"])
#: How many entries a message about too large a directory names.
NAMED: Final = 5
#: So many entries are looked at to name the largest of what is too large.
ENOUGH: Final = 10_000

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a directory to pack."""

    name: str  #: relative, with slashes
    path: str
    is_dir: bool
    size_bytes: int
    executable: bool
    changed_ns: int


class Excludes:
    """Patterns as in a ``.gitignore`` file: the last one that fits decides."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_rule(pattern) for pattern in patterns if pattern.strip("/ ")]

    def hides(self, name: str, is_dir: bool) -> bool:
        hidden = False
        for fits, only_dirs, keeps in self._rules:
            if fits.fullmatch(name) and (is_dir or not only_dirs):
                hidden = not keeps
        return hidden


def _rule(pattern: str) -> tuple[re.Pattern[str], bool, bool]:
    pattern = pattern.strip()
    keeps = pattern.startswith("!")
    body = pattern[keeps:].removeprefix("./")
    only_dirs = body.endswith("/")
    body = body.rstrip("/")
    anywhere = "/" not in body
    text = _translate(body.lstrip("/"))
    return re.compile(f"(?:.*/)?{text}" if anywhere else text, re.S), only_dirs, keeps


_WILD = re.compile(r"\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]")


def _translate(pattern: str) -> str:
    parts, position = [], 0
    for found in _WILD.finditer(pattern):
        parts.append(re.escape(pattern[position : found.start()]))
        parts.append(_wild(found[0]))
        position = found.end()
    return "".join([*parts, re.escape(pattern[position:])])


def _wild(token: str) -> str:
    if token == "**/":
        return "(?:.*/)?"
    if token == "/**":
        return "/.*"
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    inner = token[1:-1].replace("\\", "\\\\")
    return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"


def single(path: str) -> Entry:
    """Return a file as the only entry of a package."""
    status = os.stat(path)
    name, size = os.path.basename(path), status.st_size
    return Entry(name, path, False, size, False, status.st_mtime_ns)


def check_archive(path: str) -> None:
    """Raise ValueError if a file is no archive that nodes would unpack."""
    try:
        with zipfile.ZipFile(path) as archive:
            archives.check_members(archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"{path} is no good archive: {error}") from error


def entries(root: str, excludes: Sequence[str] = ()) -> list[Entry]:
    """Return what of a directory is to be packed, sorted by name; of one that is too
    large a part that is too large.

    Raises:
        ValueError: it cannot be read, or there is too much in it.
    """
    prefix = root.rstrip("/") + "/"
    patterns = [
        f"/{pattern.removeprefix(prefix)}" if pattern.startswith(prefix) else pattern
        for pattern in excludes
    ]
    above = frozenset([os.path.realpath(root)])
    found: list[Entry] = []
    size_bytes = 0
    try:
        for entry in _walk(root, "", Excludes(patterns), above):
            _check_name(root, entry.name)
            found.append(entry)
            size_bytes += entry.size_bytes
            if size_bytes > MAX_PACKAGE_BYTES and len(found) >= ENOUGH:
                break  # `check_size` refuses it; it may be the whole disk
            if len(found) > archives.MAX_MEMBERS:
                raise ValueError(
                    f"{root} holds more than {archives.MAX_MEMBERS} files and"
                    f" directories, such as {entry.name}: leave some out with"
                    " runtime_env['excludes']"
                )
    except OSError as error:
        raise ValueError(f"cannot read {root}: {error}") from error
    return sorted(found, key=lambda entry: entry.name)


def _check_name(root: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{root} holds {name!r}, a name that is not UTF-8 and cannot be shipped:"
            " rename it, or leave it out with runtime_env['excludes']"
        ) from None


def _walk(
    directory: str, prefix: str, excludes: Excludes, above: frozenset[str]
) -> Iterator[Entry]:
    with os.scandir(directory) as listing:
        children = sorted(listing, key=lambda child: child.name)
    for child in children:
        try:
            status = child.stat()
        except FileNotFoundError:
            continue  # a link that leads nowhere, or it was removed just now
        except OSError:
            if child.is_symlink():  # to itself
                continue
            raise
        name, is_dir = prefix + child.name, stat.S_ISDIR(status.st_mode)
        known = is_dir or stat.S_ISREG(status.st_mode)
        if not known or child.name in LEFT_OUT or excludes.hides(name, is_dir):
            continue
        size = 0 if is_dir else status.st_size
        executable = bool(status.st_mode & 0o100)
        entry = Entry(name, child.path, is_dir, size, executable, status.st_mtime_ns)
        if not is_dir:
            yield entry
            continue
        real = os.path.realpath(child.path)
        if real not in above:
            yield entry
            yield from _walk(child.path, f"{name}/", excludes, above | {real})


def check_size(
    what: str, found: Sequence[Entry], max_bytes: int = MAX_PACKAGE_BYTES
) -> None:
    """Raise ValueError if all of it together is too large; names the largest."""
    files = [entry for entry in found if not entry.is_dir]
    total = sum(entry.size_bytes for entry in files)
    if total <= max_bytes:
        return
    largest = sorted(files, key=lambda entry: -entry.size_bytes)[:NAMED]
    least = "at least " if len(found) >= ENOUGH else ""
    named = ", ".join(f"{e.name} ({_mib(e.size_bytes)})" for e in largest)
    unasked = " unless runtime_env['py_modules'] names it" * (
        max_bytes < MAX_PACKAGE_BYTES
    )
    raise ValueError(
        f"{what} holds {least}{_mib(total)}, and {_mib(max_bytes)} may be"
        f" shipped{unasked}. Its largest files: {named}. Leave out what tasks do not"
        " need with"
        " runtime_env['excludes'], or keep it where all nodes can read it"
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def write_zip(found: Iterable[Entry], prefix: str = "") -> IO[bytes]:
    """Return an open file, deleted already, with the entries as a zip.

    Args:
        prefix: goes in front of every name.
    """
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            for entry in found:
                _add(made, entry, prefix + entry.name)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            raise ValueError(f"cannot pack a runtime environment: {error}") from error
        raise
    return file


def _add(made: zipfile.ZipFile, entry: Entry, name: str) -> None:
    info = zipfile.ZipInfo(f"{name}/" if entry.is_dir else name, _EPOCH)
    info.create_system = 3
    if entry.is_dir:
        info.external_attr = (stat.S_IFDIR | 0o755) << 16 | 0x10
        made.writestr(info, b"")
        return
    mode = 0o755 if entry.executable else 0o644
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    with (
        open(entry.path, "rb") as source,
        made.open(info, "w", force_zip64=entry.size_bytes > 1 << 30) as target,
    ):
        shutil.copyfileobj(source, target, 1 << 20)
