#!/usr/bin/env python3
"""Measure sparkray beside its peers, in one go and interleaved; print the table.

    python benchmarks/run.py [--peers ray,dask] [--rows pipelined,put] [--rounds 3]

The peers live in a virtual environment of their own, ``benchmarks/.venv``, which the
first run makes; a peer that cannot be installed is left out.  Each life of a peer is a
process of its own, and a round is one life of every peer, so that what else the machine
does hits all of them alike.  Results: ``benchmarks/results/<date>.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
#: What the measuring and the plot need, besides sparkray and the peers.
TOOLS = ("numpy", "pandas", "psutil", "matplotlib", "scikit-learn")


def main() -> None:
    if Path(sys.prefix) != ENVIRONMENT:
        if not PYTHON.exists():
            _make_environment()
        os.execv(PYTHON, [str(PYTHON), __file__, *sys.argv[1:]])
    from peers import MODULES
    from rows import ROWS

    options = _options(list(MODULES), list(ROWS))
    peers = [name for name in options.peers if _available(name)]
    results = _measure(peers, options)
    _write(peers, results, options)


def _options(peers: list[str], rows: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        default=peers,
        help=",".join(peers),
    )
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), default=rows, help=",".join(rows)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument(
        "--budget", type=float, default=10.0, help="seconds that a row may take a peer"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    for given, known in ((options.peers, peers), (options.rows, rows)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {known}")
    return options


def _make_environment() -> None:
    print(f"making {ENVIRONMENT}", file=sys.stderr)
    venv.create(ENVIRONMENT, with_pip=True)
    _install(*TOOLS)


def _install(*arguments: str) -> bool:
    command = [PYTHON, "-m", "pip", "install", "--quiet", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def _available(name: str) -> bool:
    """Tell whether a peer can be imported, after trying to install it."""
    from peers import PACKAGES

    module, requirement = PACKAGES[name]
    if importlib.util.find_spec(module) is not None:
        return True
    arguments = [requirement] if requirement else ["--editable", str(HERE.parent)]
    if _install(*arguments):
        return True
    print(f"{name} cannot be installed here and is left out", file=sys.stderr)
    return False


def _measure(peers: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return row -> peer -> list of measurements, one a round."""
    results: dict[str, Any] = {row: {} for row in options.rows}
    for number in range(options.rounds):
        turn = number % max(1, len(peers))
        for peer in [*peers[turn:], *peers[:turn]]:
            begin = time.monotonic()
            for row, value in _one_life(peer, options).items():
                results[row].setdefault(peer, []).append(value)
            took = f"{time.monotonic() - begin:.0f} s"
            print(f"round {number + 1}: {peer} took {took}", file=sys.stderr)
    return results


def _one_life(peer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all rows for one peer in a process group that is ended afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out.json"), Path(folder, "log")
        command = [str(PYTHON), str(HERE / "rows.py"), peer, "--out", str(out)]
        command += ["--rows", ",".join(options.rows), "--workers", str(options.workers)]
        command += ["--budget", str(options.budget)]
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(HERE)},
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            limit_s = 60 + 3 * options.budget * len(options.rows)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if out.exists():
            measured: dict[str, Any] = json.loads(out.read_text())
            return measured
        tail = log.read_text(errors="replace")[-2000:]
        print(f"{peer} failed:\n{tail}", file=sys.stderr)
        return {}


def _write(
    peers: Sequence[str], results: dict[str, Any], options: argparse.Namespace
) -> None:
    from report import machine, plot, summary, table

    document = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "machine": machine(peers),
        "workers": options.workers,
        "rounds": options.rounds,
        "rows": summary(results),
    }
    print(table(document, peers))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    plot(document, peers, path.with_suffix(".png"))
    print(f"\nwritten: {path} and {path.with_suffix('.png').name}", file=sys.stderr)


if __name__ == "__main__":
    main()
