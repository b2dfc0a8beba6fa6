"""Where a daemon writes: its log, and what it prints before it has a directory."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(directory: Path) -> None:
    """Log to a file in ``directory`` from now on.

    Raises:
        OSError: it cannot be written; says how to choose another.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        logging.basicConfig(
            filename=directory / f"node-{os.getpid()}.log",
            level=logging.INFO,
            force=True,  # a node that starts anew has another directory
            format=_FORMAT,
        )
    except OSError as error:
        text = (
            f"cannot write logs in {directory} ({error.strerror}): choose another"
            " directory by SPARKRAY_LOG_DIR or --log-dir"
        )
        raise OSError(error.errno, text) from error


def log_to_output() -> None:
    """Log to standard error, until there is a directory."""
    logging.basicConfig(level=logging.INFO, force=True, format=_FORMAT)


def keep_output(path: str, directory: Path) -> None:
    """Move the file of our own output beside the other logs, if it was not yet."""
    if not path or not os.path.exists(path):
        return
    kept = directory / f"daemon-{os.getpid()}.log"
    try:
        os.rename(path, kept)
    except OSError:  # another file system: go on in a new file
        with contextlib.suppress(OSError):
            shutil.copyfile(path, kept)
            fd = os.open(kept, os.O_WRONLY | os.O_APPEND)
            for standard in (1, 2):
                os.dup2(fd, standard)
            os.close(fd)
            os.unlink(path)


def drop_output(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
