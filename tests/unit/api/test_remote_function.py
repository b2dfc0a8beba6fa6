import functools
import pickle
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import sparkray
from sparkray.api.options import STREAMING
from sparkray.api.remote_function import RemoteFunction


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def count(n: int) -> Iterator[int]:
    yield from range(n)


def test_all_ways_to_make_a_function_remote() -> None:
    for made in (
        sparkray.remote(add),
        sparkray.remote()(add),
        sparkray.remote(num_cpus=2)(add),
        RemoteFunction(add, {}),
    ):
        assert isinstance(made, RemoteFunction)
        assert made.__wrapped__ is add and made.__doc__ == "Add two numbers."
        assert made.__name__ == "add"


def test_calling_it_says_how_to_call_it() -> None:
    with pytest.raises(TypeError, match=r"add\.remote\(\.\.\.\)"):
        sparkray.remote(add)(1)


@pytest.mark.parametrize("target", [5, "text", None, object(), sparkray.remote(add)])
def test_only_functions_can_be_remote(target: Any) -> None:
    with pytest.raises(TypeError, match="remote takes a function"):
        sparkray.remote(target)


def test_a_class_becomes_an_actor_class_that_is_not_called_directly() -> None:
    made = sparkray.remote(Fraction)
    with pytest.raises(TypeError, match=r"Fraction\.remote"):
        made()


def test_an_async_function_is_refused_with_advice() -> None:
    async def later() -> None: ...

    with pytest.raises(ValueError, match=r"asyncio\.run"):
        sparkray.remote(later)


def test_options_and_function_do_not_go_together() -> None:
    with pytest.raises(TypeError, match="@remote"):
        sparkray.remote(add, num_cpus=2)  # type: ignore[call-overload]


def test_options_leave_the_original_alone_and_keep_what_is_not_named() -> None:
    first = sparkray.remote(num_cpus=2, name="x")(add)
    second = first.options(num_cpus=3)
    third = second.options(num_cpus=None)
    cpus = [f._options.resources["CPU"] // 10_000 for f in (first, second, third)]
    assert cpus == [2, 3, 1]
    assert third._name == second._name == "x"


def test_equal_options_give_the_same_variant_and_many_do_not_pile_up() -> None:
    first = sparkray.remote(add)
    assert first.options(num_cpus=2) is first.options(num_cpus=2)
    assert first.options(num_cpus=1) is not first.options(num_cpus=1.0)
    for i in range(1000):
        first.options(name=f"task {i}")
    assert len(first._variants) <= 32


def test_wrong_options_are_refused_when_given() -> None:
    for make in (sparkray.remote(add).options, lambda **o: sparkray.remote(**o)(add)):
        with pytest.raises(ValueError, match="no_such_option"):
            make(no_such_option=1)
        with pytest.raises(TypeError):
            make(num_cpus="2")
        with pytest.raises(ValueError, match="generator function"):
            make(num_returns="streaming")


def test_generator_functions_stream_through_partial_too() -> None:
    for function in (count, functools.partial(count, 3)):
        assert sparkray.remote(function)._options.num_returns == STREAMING


def test_names_are_those_of_the_source() -> None:
    def inner() -> None: ...

    assert sparkray.remote(inner)._name == "inner"
    assert sparkray.remote(functools.partial(add, 1))._name == "add"
    assert sparkray.remote(name="mine")(inner)._name == "mine"


def test_it_pickles_as_function_and_options() -> None:
    made = sparkray.remote(num_cpus=2, resources={"tok": 1})(add)
    copy = pickle.loads(cloudpickle.dumps(made))
    assert copy._checked == {"num_cpus": 2, "resources": {"tok": 1}}
    assert copy._options == made._options and copy._fewest == 1 and copy._most == 2
    assert copy.options(num_cpus=3)._options.resources["CPU"] == 30_000


def test_a_function_that_calls_itself_by_a_global_name_pickles_whole() -> None:
    module = ModuleType("__main__")
    source = """
        import sparkray

        @sparkray.remote(num_cpus=1)
        def fib(n, *, step=1):
            return fib.remote(n - step)
    """
    exec(textwrap.dedent(source), vars(module))
    plain = pickle.loads(cloudpickle.dumps(module.fib.__wrapped__))
    itself = plain.__globals__["fib"]
    assert itself.__wrapped__ is plain
    assert (itself._fewest, itself._most) == (1, 1)
    itself._signature.check((1,), {"step": 2})
    with pytest.raises(TypeError, match="step"):
        itself._signature.check((1, 2), {})


def test_a_missing_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        sparkray.remote(add).no_such_name  # noqa: B018
