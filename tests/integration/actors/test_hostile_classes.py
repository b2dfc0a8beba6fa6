"""Classes that do what no class should: each call gets an error, and nothing hangs."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, SparkrayError, TaskError

pytestmark = pytest.mark.usefixtures("shared")

SHAPES = ["plain", "threaded", "async"]


class Silent(Exception):
    """Lets nobody look at it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickling")

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("no attributes")


class Fatal(BaseException):
    """No `Exception`."""


def made(cls: type, shape: str) -> Any:
    """Return an actor of the class as one of the three kinds."""
    if shape == "async":

        async def tick(self: Any) -> None: ...

        cls = type(cls.__name__, (cls,), {"tick": tick, "__module__": __name__})
    options = {"max_concurrency": 2} if shape == "threaded" else {}
    return sparkray.remote(cls).options(num_cpus=0, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_class_whose_attributes_always_raise(shape: str) -> None:
    class Shut:
        def __getattribute__(self, name: str) -> Any:
            raise LookupError(f"no {name} for you")

        def call(self) -> int:
            return 1

    actor = made(Shut, shape).remote()
    for _ in range(2):
        with pytest.raises(LookupError, match="no call for you") as caught:
            sparkray.get(actor.call.remote(), timeout=20)
        assert isinstance(caught.value, TaskError)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_method_that_the_instance_hides(shape: str) -> None:
    class Hidden:
        def __init__(self) -> None:
            self.call = 5  # type: ignore[assignment]

        def call(self) -> int:  # type: ignore[no-redef]
            return 1

        def other(self) -> str:
            return "fine"

    actor = made(Hidden, shape).remote()
    with pytest.raises(TypeError, match="not callable"):
        sparkray.get(actor.call.remote(), timeout=20)
    assert sparkray.get(actor.other.remote(), timeout=20) == "fine"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [Silent, Fatal, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_method_raises_is_the_error_of_its_call(
    shape: str, kind: type[BaseException]
) -> None:
    class Raises:
        def call(self) -> None:
            raise kind()

        async def acall(self) -> None:
            raise kind()

        def hello(self) -> str:
            return "hello"

    if shape != "async":
        del Raises.acall  # type: ignore[attr-defined]
    actor = made(Raises, shape).remote()
    for name in ["call", *(["acall"] if shape == "async" else [])]:
        with pytest.raises(TaskError, match=kind.__name__):
            sparkray.get(getattr(actor, name).remote(), timeout=20)
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "kind", [Silent, Fatal, KeyboardInterrupt, SystemExit, GeneratorExit]
)
def test_whatever_a_constructor_raises_is_the_error_of_the_calls(
    shape: str, kind: type[BaseException]
) -> None:
    class Raises:
        def __init__(self) -> None:
            raise kind()

        def call(self) -> None: ...

    actor = made(Raises, shape).remote()
    with pytest.raises(ActorDiedError, match=kind.__name__):
        sparkray.get(actor.call.remote(), timeout=20)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_constructor_that_returns_something(shape: str) -> None:
    class Returns:
        def __init__(self) -> None:
            return 5  # type: ignore[return-value]

        def call(self) -> None: ...

    actor = made(Returns, shape).remote()
    with pytest.raises(ActorDiedError, match="should return None"):
        sparkray.get(actor.call.remote(), timeout=20)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_class_that_makes_something_else(shape: str) -> None:
    class Other:
        def __new__(cls) -> Any:
            return 5

        def call(self) -> None: ...

    actor = made(Other, shape).remote()
    with pytest.raises(AttributeError, match="call"):
        sparkray.get(actor.call.remote(), timeout=20)


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_metaclasses_and_raising_finalizers_do_no_harm(shape: str) -> None:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            instance = super().__call__(*args)
            instance.made_by = "meta"
            return instance

    class Slotted(metaclass=Meta):
        __slots__ = ("made_by", "value")

        def __init__(self, value: int) -> None:
            self.value = value

        def get(self) -> tuple[str, int]:
            return self.made_by, self.value

        def garbage(self) -> None:
            class Last:
                def __del__(self) -> None:
                    raise RuntimeError("in a finalizer")

            Last()

        def __del__(self) -> None:
            raise RuntimeError("in the finalizer")

    actor = made(Slotted, shape).remote(7)
    sparkray.get(actor.garbage.remote(), timeout=20)
    assert sparkray.get(actor.get.remote(), timeout=20) == ("meta", 7)


def test_a_metaclass_that_lets_nobody_look_is_refused_at_the_call() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "call":
                raise RuntimeError("no looking")
            return super().__getattribute__(name)

    class Shut(metaclass=Meta):
        def call(self) -> int:
            return 1

        def other(self) -> int:
            return 2

    with pytest.raises(TypeError, match=r"Shut\.call.*no looking"):
        sparkray.remote(Shut)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_cannot_be_sent_is_the_error_of_its_call(shape: str) -> None:
    class Sticky:
        def call(self) -> Any:
            return sys._getframe()

        def silent(self) -> Any:
            return Silent()

        def hello(self) -> str:
            return "hello"

    actor = made(Sticky, shape).remote()
    for name in ("call", "silent"):
        with pytest.raises((TaskError, SparkrayError, TypeError)):
            sparkray.get(getattr(actor, name).remote(), timeout=20)
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"


def test_an_argument_that_does_not_unpickle_is_the_error_of_its_call() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return _explode, ()

    class Takes:
        def call(self, bomb: Any) -> None: ...

        def hello(self) -> str:
            return "hello"

    for shape in SHAPES:
        actor = made(Takes, shape).remote()
        with pytest.raises(LookupError, match="boom"):
            sparkray.get(actor.call.remote(Bomb()), timeout=20)
        assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"


def _explode() -> None:
    raise LookupError("boom")


def test_a_coroutine_that_cancels_itself_is_answered() -> None:
    class Quits:
        async def call(self) -> None:
            raise asyncio.CancelledError

        async def hello(self) -> str:
            return "hello"

    actor = sparkray.remote(Quits).remote()
    with pytest.raises(SparkrayError):
        sparkray.get(actor.call.remote(), timeout=20)
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"
