"""Copies of every size are whole, with and without numpy."""

from __future__ import annotations

import os
import sys

import pytest

from sparkray.store import copying


@pytest.mark.parametrize("numpy_is_loaded", [True, False])
@pytest.mark.parametrize("extra", [-1, 0, 1, 4097])
@pytest.mark.parametrize("base", ["UNLOCKED_MIN_BYTES", "PARALLEL_MIN_BYTES"])
def test_a_copy_is_whole_and_touches_nothing_else(
    base: str, extra: int, numpy_is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PARALLEL_MIN_BYTES", 2 * 1024 * 1024)
    if not numpy_is_loaded:
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
    size = getattr(copying, base) + extra
    source = os.urandom(size)
    target = bytearray(size + 2)
    copying.copy_into(memoryview(target)[1:-1], source)
    assert target == b"\0" + source + b"\0"
