"""Refs and streams of a session that has ended: they say so, and start nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkray
from sparkray.exceptions import ObjectLostError, SparkrayError


@sparkray.remote
def three() -> Iterator[int]:
    yield from range(3)


def test_an_old_ref_starts_no_cluster(cluster_root: Path) -> None:
    with sparkray.init(address="local", num_cpus=1):
        ref = sparkray.put(1)
    for use in (sparkray.get, sparkray.cancel, lambda ref: sparkray.get([ref])):
        with pytest.raises(ObjectLostError, match="session of sparkray that has ended"):
            use(ref)
    with pytest.raises(ObjectLostError, match="session of sparkray that has ended"):
        sparkray.wait([ref])
    assert not sparkray.is_initialized()


def test_an_old_stream_hands_out_no_refs(cluster_root: Path) -> None:
    with sparkray.init(address="local", num_cpus=1):
        stream = three.remote()
        assert sparkray.get([next(stream), stream.completed()]) == [0, None]
    with pytest.raises(SparkrayError, match=r"sparkray\.init"):
        next(stream)
    with pytest.raises(ObjectLostError):
        sparkray.wait([stream])
    assert not sparkray.is_initialized()
    with sparkray.init(address="local", num_cpus=1):
        with pytest.raises(SparkrayError, match="a session that has ended"):
            next(stream)
        assert sparkray.get(list(three.remote())) == [0, 1, 2]
