import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

TOKEN = b"\x07" * 32


@dataclass(frozen=True)
class HeadProcess:
    process: subprocess.Popen[str]
    port: int
    token: bytes = TOKEN

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def head_process(**environment: str) -> Iterator[HeadProcess]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("serve_head.py"))],
        env=os.environ | {"SPARKRAY_TOKEN": TOKEN.hex()} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], 20)[0], "no head after 20 s"
        yield HeadProcess(process, int(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


@pytest.fixture
def head() -> Iterator[HeadProcess]:
    with head_process() as head:
        yield head


@pytest.fixture
def start_head() -> object:
    return head_process
