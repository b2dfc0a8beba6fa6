"""A runtime as small as can be: the agent channel over a plain blocking socket."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from typing import Any

import sparkray
from sparkray.protocol import messages as m
from sparkray.protocol.codec import decode_channel, encode
from sparkray.protocol.framing import FrameDecoder, frame
from sparkray.transport.auth import Handshake


class RawClient:
    """Speaks to an agent; answers nothing by itself."""

    def __init__(self, path: str, token: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self._decoder = FrameDecoder()
        self.received: list[Any] = []
        self._calls = 0
        self.worker_id = os.urandom(16)
        try:
            self._prove(token)
        except BaseException:
            self.socket.close()
            raise

    def _prove(self, token: bytes) -> None:
        handshake = Handshake(token, server=False)
        self.socket.sendall(handshake.first_bytes())
        while not handshake.done:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("refused")
            reply, rest = handshake.feed(data)
            self.socket.sendall(reply)
            self._feed(rest)

    def attach(
        self, kind: str = "driver", *, job_id: bytes = b"", **config: Any
    ) -> m.Attached:
        fields: dict[str, Any] = {
            "namespace": "",
            "sys_path": [],
            "runtime_env": "",
            "log_to_driver": True,
            "entrypoint": "test",
            "preload": [],
        }
        self.send(
            m.Attach(
                kind,
                self.worker_id,
                os.getpid(),
                job_id,
                "",
                "",
                0,
                m.JobConfig(**{**fields, **config}),
                {"python": platform.python_version(), "sparkray": sparkray.__version__},
            )
        )
        answer = self.wait_for(
            lambda message: isinstance(message, (m.Attached, m.CallFailed))
        )
        assert isinstance(answer, m.Attached), answer
        self.attached = answer
        return answer

    def send(self, message: Any) -> None:
        self.socket.sendall(frame(encode(message)))

    def call(self, kind: type, *fields: Any, timeout_s: float = 20.0) -> Any:
        """Send a call and return its answer, whatever else comes meanwhile."""
        return self.answer_to(self.begin(kind, *fields), timeout_s)

    def begin(self, kind: type, *fields: Any) -> int:
        self._calls += 1
        self.send(kind(self._calls, *fields))
        return self._calls

    def answer_to(self, call: int, timeout_s: float = 20.0) -> Any:
        return self.wait_for(
            lambda message: getattr(message, "call", None) == call, timeout_s
        )

    def wait_for(self, wanted: Callable[[Any], bool], timeout_s: float = 20.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            for message in self.received:
                if wanted(message):
                    self.received.remove(message)
                    return message
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"not among {self.received}")
            self.socket.settimeout(left_s)
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the agent closed the channel")
            self._feed(data)

    def lease(
        self,
        count: int = 1,
        *,
        resources: dict[str, int] | None = None,
        runtime_env: str = "",
        strategy: m.Strategy | None = None,
        depth: int = 0,
    ) -> Any:
        return self.answer_to(
            self.begin_lease(
                count,
                resources=resources,
                runtime_env=runtime_env,
                strategy=strategy,
                depth=depth,
            )
        )

    def begin_lease(
        self,
        count: int = 1,
        *,
        resources: dict[str, int] | None = None,
        runtime_env: str = "",
        strategy: m.Strategy | None = None,
        depth: int = 0,
    ) -> int:
        resources = {"CPU": 10_000} if resources is None else resources
        spec = m.LeaseSpec(
            self.attached.job_id,
            runtime_env,
            resources,
            strategy or m.Strategy(),
            depth,
        )
        return self.begin(m.RequestLeases, spec, count)

    def close(self) -> None:
        self.socket.close()

    def _feed(self, data: bytes) -> None:
        if data:
            self.received += map(decode_channel, self._decoder.feed(data))


def eventually(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """Return the first true value of ``condition``; fail if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never true: {condition}"
        time.sleep(0.02)
    return value
