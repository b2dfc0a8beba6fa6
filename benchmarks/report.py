"""What the measurements become: medians, a table with ratios, a plot."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from peers import PACKAGES
from rows import ROWS

BASE = "sparkray"  #: the ratios say how many times its value a peer takes


def machine(peers: Sequence[str]) -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {peer: _version(PACKAGES[peer][0]) for peer in peers},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return platform.python_version()  # of the standard library


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Return row -> peer -> median, all values, whether scaled, or an error."""
    return {
        row: {peer: _summary_of(rounds) for peer, rounds in peers.items()}
        for row, peers in results.items()
    }


def _summary_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    good = [one for one in rounds if "error" not in one]
    if not good:
        return {"error": rounds[0]["error"]}
    values = [one["value"] for one in good]
    return {
        "median": statistics.median(values),
        "values": values,
        "scaled": any(one["scaled"] for one in good),
    }


def table(document: dict[str, Any], peers: Sequence[str]) -> str:
    """Return the table as text: a line a row, a column a peer, ratios in brackets."""
    head = ["", *peers]
    lines = [
        [_title(row), *_cells(row, by_peer, peers)] for row, by_peer in _rows(document)
    ]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in [head, *lines]
    ]
    text.append(
        f"\nMedians of {document['rounds']} interleaved rounds,"
        f" {document['workers']} workers, {document['machine']['cpus']} cores; less is"
        f" better. (n x): n times {BASE}. ~: scaled from fewer tasks. -: not offered."
    )
    return "\n".join(text)


def _rows(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(document["rows"].items())


def _title(row: str) -> str:
    return ROWS[row].title


def _cells(row: str, by_peer: dict[str, Any], peers: Sequence[str]) -> list[str]:
    base = by_peer.get(BASE, {}).get("median")
    return [_cell(by_peer.get(peer), ROWS[row].unit, base, peer) for peer in peers]


def _cell(
    found: dict[str, Any] | None, unit: str, base: float | None, peer: str
) -> str:
    if found is None:
        return "-"
    if "error" in found:
        return "failed"
    text = ("~" if found["scaled"] else "") + _amount(found["median"], unit)
    if base and peer != BASE:
        text += f" ({found['median'] / base:.3g} x)"
    return text


def _amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.1f} {unit}"
    for factor, name in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {name}"
    return f"{value * 1e6:.3g} us"


def plot(document: dict[str, Any], peers: Sequence[str], path: Path) -> None:
    """Draw one small bar chart a row, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _rows(document)
    columns = 3
    lines = -(-len(rows) // columns)
    size = (12, lines * (0.7 + 0.25 * len(peers)))
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False)
    for axis, (row, by_peer) in zip(axes.flat, rows, strict=False):
        _draw_row(axis, row, by_peer, peers)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_row(
    axis: Any, row: str, by_peer: dict[str, Any], peers: Sequence[str]
) -> None:
    shown = [peer for peer in reversed(peers) if "median" in by_peer.get(peer, {})]
    values = [by_peer[peer]["median"] for peer in shown]
    colours = ["tab:orange" if peer == BASE else "tab:blue" for peer in shown]
    bars = axis.barh(shown, values, color=colours, log=True)
    texts = [_cell(by_peer[peer], ROWS[row].unit, None, peer) for peer in shown]
    axis.bar_label(bars, texts, padding=3, fontsize=8)
    axis.set_title(_title(row), fontsize=9)
    axis.tick_params(labelsize=8)
    axis.xaxis.set_visible(False)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    if values:  # room to the left of the shortest bar, and for the longest one's label
        axis.set_xlim(
            min(values) / 3, max(values) * (max(values) / min(values) + 3) ** 0.4
        )
