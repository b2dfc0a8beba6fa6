"""Writes the generated pages: ``python docs/generate.py``.

docs/configuration.md from sparkray/config.py, docs/compatibility.md from
sparkray/compat/ray/table.py, docs/patterns/NAME.md from the program beside it.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from sparkray.compat.ray import table
from sparkray.config import PREFIX, Settings

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """\
# Configuration

A setting is read from its environment variable when a process starts; what `init` or
the command line is given wins over it. Names end in their unit: `_s` seconds, `_bytes`
bytes. Settings of scope *cluster* are read by the agent, and every process on its node
takes them from there; the others are read by each process for itself.

This page is generated from `sparkray/config.py` by `python docs/generate.py`.

| setting | variable | default | scope | meaning |
|---|---|---|---|---|
"""

TAIL = """
## Other variables

| variable | meaning |
|---|---|
| `SPARKRAY_ADDRESS` | `host:port` of the head that `init()` joins when given none |
| `SPARKRAY_TOKEN` | the cluster's token; without it one is made |
| `SPARKRAY_TOKEN_FILE` | a file that holds the token |
| `SPARKRAY_TLS_CA`, `_CERT`, `_KEY` | files for [TLS](security.md) |
| `SPARKRAY_REQUIREMENT`, `_PYTHON`, `_PORT`, `_WORKER_PORTS`, `_NUM_CPUS` | for \
[init scripts](init-scripts.md) only |
"""


def row(field: dataclasses.Field[object]) -> str:
    default = field.default
    shown = "empty" if default == "" else f"`{default}`"
    scope = "cluster" if field.metadata["shared"] else "process"
    cells = (f"`{field.name}`", f"`{PREFIX}{field.name.upper()}`", shown, scope)
    return "| " + " | ".join([*cells, field.metadata["doc"]]) + " |\n"


def page() -> str:
    return HEAD + "".join(map(row, dataclasses.fields(Settings))) + TAIL


def pattern_page(program: Path) -> str:
    source = program.read_text()
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    code = source.split('"""', 2)[2].strip()
    head = title.partition(":")[0]
    return f"# {head}\n\n{title}\n\n{text}\n\n```python\n{code}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    PAGE.with_name("compatibility.md").write_text(table.page())
    for program in PAGE.parent.glob("patterns/*.py"):
        program.with_suffix(".md").write_text(pattern_page(program))
