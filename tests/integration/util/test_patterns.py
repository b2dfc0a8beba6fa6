import runpy
from pathlib import Path

import pytest

PATTERNS = sorted((Path(__file__).parents[3] / "docs" / "patterns").glob("*.py"))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("path", PATTERNS, ids=[path.stem for path in PATTERNS])
def test_the_example_runs(path: Path) -> None:
    runpy.run_path(str(path))["main"]()


@pytest.mark.parametrize("path", PATTERNS, ids=[path.stem for path in PATTERNS])
def test_the_page_shows_the_example_as_it_is(path: Path) -> None:
    generator = runpy.run_path(str(path.parents[1] / "generate.py"))
    page = path.with_suffix(".md").read_text()
    assert page == generator["pattern_page"](path), "run: python docs/generate.py"
    assert f"]({path.stem}.md)" in (path.parent / "README.md").read_text()
