"""The head as a process of its own, started and watched by the daemon of its node.

                 ready pipe: one JSON line, then closed
    node daemon  <--------------------------------------  this process
                 -------------------------------------->
                 owner pipe: why the cluster ends; or its end, the daemon's death

It ends the cluster in good order when the daemon says so, or when anybody asks it to;
its exit status is 0 then.  If the daemon is gone, so is it, at once: its nodes may
follow another head.  Whatever else ends it, the daemon starts it again, and it goes on
with what is in its file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import sparkray
from sparkray.config import Settings
from sparkray.head.service import HeadService
from sparkray.head.serving import serve_head
from sparkray.transport import auth, tls

_log = logging.getLogger(__name__)
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


async def _run(given: argparse.Namespace) -> NoReturn:
    """Serve until the cluster ends, then end the process from within the loop: leaving
    the usual way would wait for the threads of gRPC.

    Raises:
        OSError: it cannot listen.
    """
    token = auth.token_from_environment(os.environ)
    assert token is not None, "the daemon names its file"
    owner = _owner(given.owner_fd)
    files = tls.from_environment()
    head = HeadService(
        bytes.fromhex(given.cluster_id),
        Settings.from_environment(),
        token,
        sparkray.__version__,
        files,
        given.state_file,
    )
    server, port = await serve_head(
        head, host=given.host, port=given.port, token=token, tls=files
    )
    _tell(given.ready_fd, {"port": port})
    asked = asyncio.ensure_future(head.finished())
    await asyncio.wait([owner, asked], return_when=asyncio.FIRST_COMPLETED)
    reason = owner.result() if owner.done() else asked.result()
    await head.stop(reason)
    await server.stop(0.1)
    _log.info("the head ends: %s", reason)
    _exit(0)


def _owner(fd: int) -> asyncio.Future[str]:
    """Watch the daemon: the future has what it says; if it dies, so do we."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[str] = loop.create_future()
    os.set_blocking(fd, False)

    def readable() -> None:
        with contextlib.suppress(BlockingIOError):
            if text := os.read(fd, 4096).decode(errors="replace").strip():
                if not said.done():
                    said.set_result(text)
            elif not said.done():
                _exit(1)
            else:
                loop.remove_reader(fd)

    loop.add_reader(fd, readable)
    return said


def _tell(fd: int, said: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "w") as file:
        file.write(json.dumps(said) + "\n")


def _exit(status: int) -> NoReturn:
    logging.shutdown()
    os._exit(status)


def main(argv: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser("python -m sparkray.head", description=__doc__)
    add = parser.add_argument
    add("--cluster-id", required=True, help="in hexadecimal")
    add("--host", required=True, help="the address to listen on")
    add("--port", type=int, default=0, help="0: any")
    add("--state-file", type=Path, required=True, help="where its state is kept")
    add("--log-dir", type=Path, required=True)
    add("--owner-fd", type=int, required=True, help="end when this pipe ends")
    add("--ready-fd", type=int, required=True, help="write one JSON line here")
    given = parser.parse_args(argv)
    for fd in (given.owner_fd, given.ready_fd):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon's to hear
    log = given.log_dir / f"head-{os.getpid()}.log"
    logging.basicConfig(filename=log, level=logging.INFO, format=_FORMAT)
    try:
        asyncio.run(_run(given))
    except OSError as error:
        _log.error("the head cannot start: %s", error)
        said = error.strerror or str(error)
        _tell(given.ready_fd, {"errno": error.errno or errno.EIO, "error": said})
        _exit(1)
    except Exception:
        _log.exception("the head failed")
        _exit(1)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(main())
