import io
from typing import Any

import pytest

import sparkray
from sparkray.util.progress import tqdm
from tests.support import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_iterating_counts_and_draws_the_last_state() -> None:
    file = io.StringIO()
    assert list(tqdm(range(5), desc="rows", file=file)) == list(range(5))
    assert "rows: 5/5 100%" in file.getvalue()
    assert file.getvalue().count("\n") == 1  # not one line an item


def test_a_terminals_line_is_drawn_over() -> None:
    file = Terminal()
    with tqdm(total=3, file=file, mininterval=0, unit="fit") as bar:
        for _ in range(3):
            bar.update()
    assert file.getvalue().count("\n") == 1 and file.getvalue().count("\r") == 4
    assert "1/3 33%" in file.getvalue() and "fit/s" in file.getvalue()


def test_a_bar_without_an_iterable_cannot_be_iterated() -> None:
    with pytest.raises(TypeError, match="iterable"):
        next(iter(tqdm(total=3, disable=True)))


def test_tasks_count_for_the_driver(shared: Any) -> None:
    @sparkray.remote
    def inner(bar: tqdm) -> None:
        bar.update(2)

    @sparkray.remote
    def work(bar: tqdm, n: int) -> None:
        with bar:
            for _ in range(n):
                bar.update()
            sparkray.get(inner.remote(bar))

    file = io.StringIO()
    with tqdm(total=40, desc="all", file=file) as bar:
        sparkray.get([work.remote(bar, 8) for _ in range(4)])
        until(lambda: bar.n == 40, 20)
    assert "all: " in file.getvalue().splitlines()[-1]
