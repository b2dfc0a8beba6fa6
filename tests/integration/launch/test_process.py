"""Starting a node as a process of its own: what is left when that is cut short."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sparkray.launch import session_dir
from tests.support import driver_environment, until

INIT = "import sparkray; sparkray.init(num_cpus=1); input()"


@pytest.mark.parametrize("sign", ["starting-*.log", "*/agent.json"])
def test_a_driver_killed_while_its_node_starts_leaves_nothing(
    sign: str, tmp_path: Path
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", INIT],
        stdin=subprocess.PIPE,
        env=driver_environment(SPARKRAY_TEMP_DIR=str(tmp_path)),
    )
    with driver:
        (daemon,) = until(psutil.Process(driver.pid).children)
        until(lambda: list(tmp_path.glob(sign)) or sign.startswith("starting"))
        driver.kill()
    until(lambda: not daemon.is_running(), 30)
    until(lambda: not list(tmp_path.iterdir()), 30)


def test_what_an_older_start_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, draft = tmp_path / "starting-x.log", tmp_path / ".draft-x"
    log.touch()
    draft.mkdir()
    assert session_dir.sweep(tmp_path) == []  # it may be going on
    later = time.time() + session_dir.YOUNG_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert sorted(session_dir.sweep(tmp_path)) == [draft.name, log.name]
    assert os.listdir(tmp_path) == []
