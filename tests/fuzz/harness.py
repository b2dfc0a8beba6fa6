"""Fuzz one target with atheris: ``python -m tests.fuzz.harness TARGET [OPTIONS]``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["sparkray.protocol", "sparkray.transport"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
