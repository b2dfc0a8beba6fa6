"""Programs written for Ray run here with nothing changed but their imports."""

import re
from pathlib import Path

import pytest

from tests.support import run_driver

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.py"))


def ported(script: str) -> str:
    script = re.sub(r"(?m)^import ray$", "import sparkray.compat.ray as ray", script)
    return re.sub(r"(?m)^from ray\b", "from sparkray.compat.ray", script)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_runs_when_its_imports_are_changed(path: Path) -> None:
    run = run_driver(ported(path.read_text()), timeout_s=120)
    assert run.stdout.splitlines()[-1:] == ["done"], run.stdout + run.stderr
