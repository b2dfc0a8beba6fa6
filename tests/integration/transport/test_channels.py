"""The I/O thread and its connections: how they end."""

from __future__ import annotations

import socket
import threading
from types import ModuleType

from sparkray.runtime import core
from sparkray.transport.auth import MAGIC
from sparkray.transport.channel import IOLoop
from tests.support import until


def test_what_was_posted_before_the_end_is_done() -> None:
    loop = IOLoop("test-io")
    loop.start()
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        go_on.wait(20)

    loop.post(lambda: loop.call_later(0, busy))
    assert entered.wait(20)
    loop.post(done.set)
    stopper = threading.Thread(target=loop.stop)
    stopper.start()
    until(lambda: loop._stopping)
    go_on.set()
    stopper.join()
    assert done.is_set()


def test_a_connection_that_has_proven_nothing_ends_with_the_session(
    fresh: ModuleType,
) -> None:
    fresh.init(num_cpus=1, address="local")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(core.current().shared.address.path)
        stranger.sendall(MAGIC + bytes(32))
        assert stranger.recv(1)  # it was accepted, and is asked for its proof
        fresh.shutdown()
        while stranger.recv(4096):
            pass  # the end comes
