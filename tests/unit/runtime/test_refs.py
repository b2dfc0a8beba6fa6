import typing

from sparkray import ObjectRef
from sparkray.ids import new_worker_id, object_id


def test_an_annotation_may_say_what_a_ref_names() -> None:
    def total(parts: list[ObjectRef[int]]) -> "ObjectRef[float]": ...

    hints = typing.get_type_hints(total)
    assert typing.get_args(hints["return"]) == (float,)
    assert typing.get_origin(hints["return"]) is ObjectRef


def test_no_ref_is_nil() -> None:
    assert not ObjectRef(object_id(new_worker_id(), 1)).is_nil()
