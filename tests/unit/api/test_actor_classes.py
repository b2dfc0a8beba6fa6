"""What of a class can be called remotely, and what is said about the rest."""

from __future__ import annotations

import functools
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import cloudpickle
import pytest

import sparkray
from sparkray.api.actor import ActorClass, ActorHandle
from sparkray.api.options import STREAMING


class Base:
    def inherited(self, a: int) -> int:
        return a


class Everything(Base):
    """A bit of all."""

    constant = 5

    class Inner:
        pass

    def __init__(self, value: int, *, scale: int = 1) -> None:
        self.value = value
        self.attribute = scale

    def plain(self, a: int, b: int = 2) -> int:
        return a + b

    def _private(self) -> int:
        return 1

    def __call__(self, x: int) -> int:
        return x

    def __len__(self) -> int:
        return 3

    @staticmethod
    def static(a: int) -> int:
        return a

    @classmethod
    def of_class(cls, a: int) -> int:
        return a

    @property
    def readable(self) -> int:
        return self.value

    @functools.cached_property
    def cached(self) -> int:
        return self.value

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def decorated(self, a: int) -> int:
        return a

    def stream(self) -> Iterator[int]:
        yield 1

    async def astream(self) -> AsyncIterator[int]:
        yield 1

    async def coroutine(self, a: int) -> int:
        return a

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)


def handle_of(cls: type, **options: Any) -> Any:
    return ActorHandle(b"a" * 28, ActorClass(cls, options)._info, None)


@pytest.fixture
def handle() -> Any:
    return handle_of(Everything)


@pytest.mark.parametrize(
    "name",
    ["plain", "_private", "static", "of_class", "inherited", "decorated", "stream",
     "astream", "coroutine", "__call__", "__len__"],
)  # fmt: skip
def test_methods_are_reachable(handle: ActorHandle, name: str) -> None:
    assert f"method {name} of" in repr(getattr(handle, name))


@pytest.mark.parametrize(
    "name",
    ["constant", "Inner", "value", "attribute", "readable", "cached", "bit_length",
     "missing"],
)  # fmt: skip
def test_anything_else_raises_an_error_that_says_so(
    handle: ActorHandle, name: str
) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*Everything.*only its methods"):
        getattr(handle, name)
    assert not hasattr(handle, name)


def test_no_name_is_taken_by_the_handle_itself() -> None:
    names = [
        *("_call", "_info", "_ref", "_client", "_runtime", "_cluster", "_methods"),
        *("_actor_id", "_bond", "remote", "options", "method", "call", "join", "info"),
        *("__enter__", "__iter__", "__getitem__", "__add__", "__next__", "__await__"),
    ]

    def answer(self: object, x: int) -> int:
        return x

    handle = handle_of(type("Names", (), dict.fromkeys(names, answer)))
    for each in (handle, pickle.loads(pickle.dumps(handle))):
        for name in names:
            assert repr(getattr(each, name)).startswith(f"<method {name} of Actor(")
            with pytest.raises(TypeError, match=rf"Names\.{name}"):
                getattr(each, name).remote()


@pytest.mark.parametrize("base", [list, dict, str])
def test_methods_inherited_from_built_ins_are_reachable(base: type) -> None:
    handle = handle_of(type("Derived", (base,), {}))
    for name in set(dir(base)) - set(dir(object)) - {"__class_getitem__"}:
        if callable(getattr(base, name)):
            assert getattr(handle, name)


@pytest.mark.parametrize(
    ("name", "args"),
    [("plain", ()), ("plain", (1, 2, 3)), ("static", (1, 2)), ("static", ()),
     ("of_class", ()), ("inherited", (1, 2)), ("coroutine", ())],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_sent(
    handle: ActorHandle, name: str, args: tuple[Any, ...]
) -> None:
    again: Any = pickle.loads(pickle.dumps(handle))
    for each in (handle, again):
        with pytest.raises(TypeError, match=rf"Everything\.{name}"):
            getattr(each, name).remote(*args)


def test_signatures_survive_pickling(handle: ActorHandle) -> None:
    again: Any = pickle.loads(pickle.dumps(handle))
    for name, info in handle.__sparkray__.methods.items():
        assert again.__sparkray__.methods[name].parameters == info.parameters
        assert again.__sparkray__.methods[name].num_returns == info.num_returns
    assert again == handle and hash(again) == hash(handle)


def test_the_constructors_arguments_are_checked_at_the_call() -> None:
    cls = sparkray.remote(Everything)
    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"other": 1})]:
        with pytest.raises(TypeError, match=r"Everything\.__init__"):
            cls.remote(*args, **kwargs)


def test_a_class_without_a_constructor_takes_no_arguments() -> None:
    with pytest.raises(TypeError, match=r"Base\.__init__"):
        sparkray.remote(Base).remote(1)


def test_generators_stream_by_themselves(handle: ActorHandle) -> None:
    assert handle.__sparkray__.methods["stream"].num_returns == STREAMING
    assert handle.__sparkray__.methods["astream"].num_returns == STREAMING
    assert handle.__sparkray__.methods["plain"].num_returns == 1


def test_options_of_methods_reach_the_handle() -> None:
    class Chosen:
        @sparkray.method(num_returns=2, max_task_retries=3)
        def two(self) -> tuple[int, int]:
            return 1, 2

        def one(self) -> None: ...

    handle = handle_of(Chosen, max_task_retries=1)
    assert handle.two._template.num_returns == 2
    assert handle.two._template.max_retries == 3
    assert handle.one._template.max_retries == 1
    assert handle.two.options(num_returns=1)._template.num_returns == 1


def test_methods_and_classes_are_not_called_directly(handle: ActorHandle) -> None:
    with pytest.raises(TypeError, match=r"\.plain\.remote"):
        handle.plain(1)
    with pytest.raises(TypeError, match=r"Everything\.remote"):
        sparkray.remote(Everything)(1)


def test_an_actor_class_cannot_be_inherited_from() -> None:
    made: Any = sparkray.remote(Everything)
    with pytest.raises(TypeError, match="inherit from the plain class"):
        _derive(made)


def _derive(base: Any) -> type:
    class Derived(base):  # type: ignore[misc]
        pass

    return Derived


def test_the_class_stays_as_it_is_and_keeps_its_name_and_text() -> None:
    made = sparkray.remote(Everything)
    assert made.__name__ == "Everything" and made.__doc__ == "A bit of all."
    assert Everything(1).plain(1) == 3


def test_a_class_that_names_itself_is_whole_after_pickling() -> None:
    @sparkray.remote
    class Tree:
        def __init__(self, depth: int) -> None:
            self.child = Tree.remote(depth - 1) if depth else None

        def total(self) -> int:
            return 1

    again: Any = cloudpickle.loads(cloudpickle.dumps(Tree._cls))
    inner = again.__init__.__closure__[0].cell_contents
    assert isinstance(inner, ActorClass)
    assert "total" in {method.name for method in inner._info.methods}
    with pytest.raises(TypeError, match=r"Tree\.__init__"):
        inner.remote(1, 2)


def test_kill_and_get_actor_check_what_they_get() -> None:
    with pytest.raises(ValueError, match="handle"):
        sparkray.kill("name")  # type: ignore[arg-type]
    for name in ("", 5, None):
        with pytest.raises(ValueError, match="name of an actor"):
            sparkray.get_actor(name)  # type: ignore[arg-type]
