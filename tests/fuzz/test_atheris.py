"""Coverage-guided fuzzing of all that reads bytes of peers: ``pytest -m long``.

Needs ``pip install atheris``, which is there for some versions of Python only.
`FUZZ_S` is how long each target is fuzzed; a crash leaves its input in the output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import SEEDS, TARGETS
from tests.support import ROOT, driver_environment

FUZZ_S = int(os.environ.get("FUZZ_S", "60"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(FUZZ_S + 120)]


@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_break_what_reads_them(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS):
        (corpus / str(number)).write_bytes(seed)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.harness", target, str(corpus)),
            *(f"-max_total_time={FUZZ_S}", "-max_len=4096", "-rss_limit_mb=1024"),
            f"-artifact_prefix={tmp_path}/",
        ],
        cwd=ROOT,
        env=driver_environment(),
        capture_output=True,
        text=True,
    )
    found = {path.name: path.read_bytes() for path in tmp_path.glob("*-*")}
    assert done.returncode == 0, f"{found}\n{done.stderr[-3000:]}"
