"""The architecture as a test.  A new arrow in `MAY_IMPORT` is a design decision."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sparkray"
PUBLIC = "the names in sparkray/__init__.py"
VERSION = "sparkray.__version__"
BASE = {"ids", "exceptions", "resources", "labels", "words", "config", "stacks"}
BASE |= {VERSION}
WIRE = BASE | {"protocol", "transport"}
LIBRARY = {PUBLIC, VERSION, "exceptions", "util", "words"}

#: What a part may import.  The longest prefix of a module's name decides.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"api", "exceptions", "runtime"},
    "__main__": {"cli"},
    "actor": {"api", "runtime"},
    "ids": set(),
    "resources": set(),
    "labels": set(),
    "words": set(),
    "stacks": set(),
    "exceptions": {"ids"},
    "config": {"resources"},
    "protocol": {"ids", "exceptions", "resources", VERSION},
    "transport": BASE | {"protocol"},
    "store": WIRE,
    "runtime": WIRE | {"store"},
    "worker": WIRE | {"store", "runtime"},
    "agent": WIRE | {"store"},
    "head": WIRE,
    "launch": WIRE,
    "api": BASE | {"protocol", "runtime", "launch", "spark"},
    "cli": WIRE | {"launch", "dashboard"},
    "cli.daemon": WIRE | {"agent", "head", "launch"},
    "util": LIBRARY,
    "util.state": LIBRARY | BASE | {"protocol", "runtime"},
    "util.exchange": LIBRARY | {"protocol", "runtime"},
    "util.serialization": LIBRARY | {"store"},
    "compat": LIBRARY | {"actor", "multiprocessing"},
    "multiprocessing": LIBRARY,
    "tune": LIBRARY,
    "rl": LIBRARY | {"tune"},
    "spark": LIBRARY | WIRE | {"launch"},
    "dashboard": WIRE,
    "testing": WIRE | {PUBLIC, "launch"},
    "testing.faults": WIRE | {PUBLIC, "launch", "runtime", "testing"},
}

#: Parts, folders or modules that hold decisions: no sockets, no clock of their own.
PURE = {"exceptions", "resources", "labels", "words", "protocol", "state", "sizing"}
PURE |= {"options", "scaling"}
NOT_PURE_BY_NAME = {"util/state.py"}
IMPURE = {"asyncio", "grpc", "logging", "multiprocessing", "os", "pathlib", "pyspark"}
IMPURE |= {"queue", "random", "secrets", "socket", "subprocess", "threading", "time"}

FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(file.relative_to(ROOT)) for file in FILES]


@pytest.fixture(params=FILES, ids=NAMES)
def file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_a_module_imports_only_what_its_layer_may(file: Path) -> None:
    module = _module(file)
    inside = {
        _part(name) for name in _imports(file) if name.split(".")[0] == "sparkray"
    }
    beyond = inside - {module.split(".")[0]} - MAY_IMPORT[_rule(module)]
    assert not beyond, f"{module} may not import {sorted(beyond)}"


def test_a_module_that_holds_decisions_does_no_input_or_output(file: Path) -> None:
    path = file.relative_to(ROOT)
    if not PURE & set(path.with_suffix("").parts) or str(path) in NOT_PURE_BY_NAME:
        return
    assert not {name.partition(".")[0] for name in _imports(file)} & IMPURE


def test_only_the_transport_and_the_servicers_know_grpc(file: Path) -> None:
    path = file.relative_to(ROOT)
    if path.parts[0] != "transport" and path.name != "servicer.py":
        assert "grpc" not in {name.partition(".")[0] for name in _imports(file)}


def test_only_the_spark_part_knows_pyspark(file: Path) -> None:
    if file.relative_to(ROOT).parts[0] != "spark":
        assert "pyspark" not in {name.partition(".")[0] for name in _imports(file)}


def test_modules_do_not_import_in_circles_not_even_late() -> None:
    """Imports for the type checker alone are let through: they never run."""
    modules = {_module(file): file for file in FILES}
    arrows = {
        module: {
            target
            for name in _imports(file, for_types=False)
            if (target := _target(name, modules)) and target != module
        }
        for module, file in modules.items()
    }
    assert not (circle := _circle(arrows)), " -> ".join(circle)


def test_the_table_itself_allows_no_circle() -> None:
    parts = {rule: {*targets} & {*MAY_IMPORT} for rule, targets in MAY_IMPORT.items()}
    parts.pop("__init__")  # loads its names on first use
    for rule in [rule for rule in parts if "." in rule]:
        parts[rule.split(".")[0]] |= parts.pop(rule)
    without_self = {rule: targets - {rule} for rule, targets in parts.items()}
    assert not (circle := _circle(without_self)), " -> ".join(circle)


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def _rule(module: str) -> str:
    fitting = [r for r in MAY_IMPORT if module == r or module.startswith(r + ".")]
    assert fitting, f"{module} has no row in MAY_IMPORT"
    return max(fitting, key=len)


@functools.cache
def _imports(file: Path, *, for_types: bool = True) -> frozenset[str]:
    nodes = _nodes(ast.parse(file.read_text()), for_types)
    return frozenset(name for node in nodes for name in _names(node))


def _names(node: ast.AST) -> list[str]:
    """Return the imported names of one statement, wherever in the file it stands."""
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases if alias.name != "sparkray"]
        case ast.ImportFrom(module=module, names=aliases, level=level):
            assert not level, "imports are absolute, so that a search finds them"
            return [f"{module}.{alias.name}" for alias in aliases]
        case ast.Attribute(value=ast.Name(id="sparkray"), attr=attribute):
            return [f"sparkray.{attribute}"]  # after a plain ``import sparkray``
    return []


def _nodes(tree: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and (
            isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
        if for_types or not is_for_types:
            yield node
            yield from _nodes(node, for_types)


def _part(name: str) -> str:
    """Return the part of sparkray that an imported name belongs to."""
    if name == VERSION:
        return VERSION
    part = name.split(".")[1] if "." in name else "?"
    is_module = (ROOT / part).is_dir() or (ROOT / f"{part}.py").is_file()
    return part if is_module else PUBLIC


def _target(name: str, modules: dict[str, Path]) -> str:
    """Return the module that an imported name comes from, "" if it is not ours."""
    parts = name.split(".")[1:] if name.startswith("sparkray.") else []
    while parts:
        for candidate in (".".join(parts), ".".join([*parts, "__init__"])):
            if candidate in modules and candidate != "__init__":
                return candidate
        parts.pop()
    return ""


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return one circle in the graph, an empty list if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(arrows.get(node, ())):
            if circle := visit(target, [*path, node]):
                return circle
        done.add(node)
        return []

    return next((c for node in sorted(arrows) if (c := visit(node, []))), [])
