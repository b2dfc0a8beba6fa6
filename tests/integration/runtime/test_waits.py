"""A wait that is long says in the log what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import GetTimeoutError
from tests.support import Gate, until


def test_a_long_wait_says_what_it_waits_for(
    fresh: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SPARKRAY_WAIT_LOG_S", "0.3")
    fresh.init(num_cpus=1)
    gate = Gate(tmp_path)

    @sparkray.remote
    def held() -> int:
        gate.wait()
        return 1

    @sparkray.remote
    def add(x: int) -> int:
        return x + 1

    first = held.remote()
    second, third = add.remote(first), held.remote()

    def said(ref: Any, wait: Any) -> str:
        caplog.clear()
        wait(ref)
        lines = [r.message for r in caplog.records if "waiting for" in r.message]
        assert len(lines) == 2, "after 0.3 s and after 0.6 s"
        return lines[0]

    def get(ref: Any) -> None:
        with pytest.raises(GetTimeoutError):
            sparkray.get(ref, timeout=1)

    until(lambda: "was sent to worker" in said(first, get))
    waits = f"add ({second.task_id().hex()}) waits for its arguments, first "
    assert waits + first.hex() in said(second, get)
    assert "held (" in (line := said(third, get)) and "'CPU': 1.0" in line

    def wait(ref: Any) -> None:
        assert sparkray.wait([ref], timeout=1) == ([], [ref])

    assert "1 of 1 object" in said(first, wait)
    gate.open()
    assert sparkray.get([first, second, third]) == [1, 2, 1]


def test_a_task_that_waits_says_so_at_the_driver(
    fresh: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPARKRAY_WAIT_LOG_S", "0.3")
    fresh.init(num_cpus=2)
    gate = Gate(tmp_path)

    @sparkray.remote
    def held() -> int:
        gate.wait()
        return 1

    @sparkray.remote
    def outer() -> Any:
        return sparkray.get(held.remote())

    ref = outer.remote()
    printed = ""

    def is_said() -> bool:
        nonlocal printed
        printed += capfd.readouterr().err
        return "waiting for" in printed and "held (" in printed

    until(is_said)
    gate.open()
    assert sparkray.get(ref) == 1
