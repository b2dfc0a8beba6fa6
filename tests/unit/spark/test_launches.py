"""When the Spark jobs that start nodes are tried again, and what is said of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.spark.state.launches import PAUSE_S, Launches, cause_of

MISSING = """
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/spark/worker.py", line 10, in main
    func = read_command(serializer, infile)
  File "/spark/serializers.py", line 20, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named {name!r}

JVM stacktrace:
org.apache.spark.api.python.PythonException: ...
\tat org.apache.spark.Other.run(Other.scala:1)
"""
RAISED = MISSING.replace("ModuleNotFoundError: No module named {name!r}", "{line}")


def test_each_failure_waits_longer_than_the_one_before_up_to_a_limit() -> None:
    launches, now_s, pauses = Launches(), 100.0, []
    for number in range(12):
        launches.failed(number, "no", now_s, hopeless=False)
        waited_s = 0.0
        while not launches.may_launch(now_s + waited_s):
            waited_s += 0.25
        pauses.append(waited_s)
        now_s += waited_s
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses) and pauses[-1] == PAUSE_S[1]


def test_several_that_fail_together_count_once() -> None:
    launches = Launches()
    for number in range(8):
        launches.failed(number, "no", 0.1 * (number % 4), hopeless=False)
    assert not launches.may_launch(0.4) and launches.may_launch(0.5)


def test_a_node_that_joins_ends_the_pause_and_all_is_well_again() -> None:
    launches = Launches()
    launches.failed(1, "no", 0.0, hopeless=True)
    assert not launches.may_launch(0.1)
    launches.joined(2)
    assert launches.may_launch(0.1)
    assert not launches.failure and not launches.hopeless
    assert launches.failed(3, "no", 1.0, hopeless=False)  # news again


def test_a_joined_node_that_is_seen_again_does_not() -> None:
    launches = Launches()
    launches.joined(1)
    launches.failed(2, "no", 0.0, hopeless=False)
    launches.joined(1)
    assert not launches.may_launch(0.1)


def test_the_end_of_a_node_that_was_there_is_no_failed_start() -> None:
    launches = Launches()
    launches.joined(1)
    assert not launches.failed(1, "executor lost", 0.0, hopeless=False)
    assert launches.failure == "" and launches.may_launch(0.0)


def test_the_same_failure_is_news_once() -> None:
    launches = Launches()
    told = [
        launches.failed(number, text, 0.0, hopeless=False)
        for number, text in enumerate(["a, pid 1", "a, pid 22", "b", "a, pid 1"])
    ]
    assert told == [True, False, True, False]


@pytest.mark.parametrize("name", ["sparkray", "sparkray.spark"])
def test_executors_without_sparkray_are_told_to_get_it(name: str) -> None:
    text, hopeless = cause_of(RuntimeError(MISSING.format(name=name)))
    assert hopeless
    assert "cannot import sparkray" in text and "lacks" not in text


def test_a_missing_dependency_is_named() -> None:
    text, hopeless = cause_of(RuntimeError(MISSING.format(name="msgspec")))
    assert hopeless
    assert "it lacks msgspec" in text


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: Can't get attribute 'NodeTask'",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [MISMATCH] other Python",
        "KeyError: 'x'",
    ],
)
def test_the_cause_is_the_last_line_of_the_traceback(line: str) -> None:
    text = RAISED.format(line=line)
    assert cause_of(RuntimeError(text)) == (line, False)
    before = text.replace("JVM stacktrace:", "During handling, another:\n" + text)
    assert cause_of(RuntimeError(before)) == (line, False)


def test_an_import_that_failed_on_the_way_is_not_the_cause() -> None:
    first = RAISED.format(line="ModuleNotFoundError: No module named 'fast_json'")
    then = RAISED.format(line="ValueError: not JSON")
    assert cause_of(RuntimeError(first + then)) == ("ValueError: not JSON", False)


def test_other_errors_of_spark_say_their_first_line() -> None:
    text = "\nJob aborted due to stage failure: lost\n\tat org.apache.spark.A.b(A:1)\n"
    cause = "OSError: Job aborted due to stage failure: lost"
    assert cause_of(OSError(text)) == (cause, False)
    assert cause_of(KeyError("x")) == ("KeyError: 'x'", False)


@given(st.text())
def test_a_cause_is_found_in_any_text(text: str) -> None:
    cause, _ = cause_of(RuntimeError(text))
    assert 0 < len(cause) <= 500
