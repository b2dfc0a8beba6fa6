"""Which versions may be in one cluster."""

import pytest

from sparkray.protocol.versions import Versions, difference

HERE = Versions("3.11.9", "0.1.0")


@pytest.mark.parametrize(
    "other",
    [
        Versions("3.12.9", "0.1.0"),
        Versions("3.1.9", "0.1.0"),
        Versions("3.11.9", "0.1.1"),
        Versions("", ""),
    ],
)
def test_another_minor_python_or_sparkray_does_not_fit_and_both_are_named(
    other: Versions,
) -> None:
    assert not HERE.fits(other) and not other.fits(HERE)
    line = difference("the head", HERE, "node 7", other)
    for text in ("the head", "node 7", str(HERE), str(other), "install the same"):
        assert text in line


def test_another_patch_of_python_fits_and_is_one_line() -> None:
    other = Versions("3.11.14", "0.1.0")
    assert HERE.fits(other)
    line = difference("the head", HERE, "node 7", other)
    assert "3.11.9" in line and "3.11.14" in line and "\n" not in line
    assert "install" not in line


def test_the_same_versions_are_nothing_to_tell() -> None:
    assert HERE.fits(HERE)
    assert difference("the head", HERE, "node 7", HERE) == ""
