"""Clocks of hosts may differ: no decision rests on another host's time of day.

Where a time of day is read, and where one is compared, is listed here with the reason.
All else goes by the monotonic clock, by time-outs that travel as durations (gRPC sends
its deadlines so, too), or by order.  Only certificates of TLS know dates.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sparkray.protocol import control

ROOT = Path(__file__).parents[2] / "sparkray"

#: Module -> why it may read the time of day.
READERS = {
    "agent/jobs.py": "when a job began, to be shown",
    "head/service.py": "when a job began and ended, to be shown",
    "head/storage.py": "names a file that is set aside",
    "cli/stopping.py": "compared with processes of the same host",
    "launch/session_dir.py": "compared with files of the same host",
}
#: Module -> why it may compare times of day.
COMPARERS = {
    "cli/stopping.py": "whether one was given",
    "launch/discovery.py": "a file with a process of the same host",
    "launch/session_dir.py": "files of the same host",
}
#: Fields of messages that are times of day: shown to people only.
SHOWN = {"start_unix_s", "end_unix_s"}


SIGNS = re.compile(r"unix_s|time\.time|datetime|st_mtime|st_ctime")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Parse those that could have to do with times of day."""
    for path in sorted(ROOT.rglob("*.py")):
        if SIGNS.search(text := path.read_text()):
            yield str(path.relative_to(ROOT)), ast.parse(text)


def is_time_of_day(node: ast.AST) -> bool:
    name = getattr(node, "attr", getattr(node, "id", ""))
    is_call = isinstance(node, ast.Call) and is_reading(node.func)
    return is_call or name.endswith("unix_s") or name in ("st_mtime", "st_ctime")


def is_reading(node: ast.AST) -> bool:
    return ast.unparse(node) in ("time.time", "time.time_ns", "datetime.now")


def test_the_time_of_day_is_read_in_few_places() -> None:
    found = {
        name
        for name, tree in modules()
        if any(is_reading(node) for node in ast.walk(tree))
    }
    assert found == READERS.keys()


def test_times_of_day_are_compared_on_one_host_only() -> None:
    found = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Compare, ast.BinOp))
        and any(is_time_of_day(part) for part in ast.walk(node))
        and not isinstance(getattr(node, "op", None), (ast.BitOr, ast.Mod))
    }
    assert found == COMPARERS.keys()


def test_messages_have_times_of_day_to_be_shown_only() -> None:
    trees = [tree for name, tree in modules() if name.startswith("protocol/")]
    fields = {
        node.target.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {name for name in fields if "unix" in name or "clock" in name} == SHOWN
    assert set(control.JobInfo.__struct_fields__) >= SHOWN
