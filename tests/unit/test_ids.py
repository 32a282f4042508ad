"""The ids of a Struct: found by the type of the field, checked, and put into lower case."""

import msgspec
import pytest

from schemas.fields import Uuid, are_lower_uuids
from schemas.ids import Ids

ONE, TWO, THREE = (f"abcdefab-cdef-4abc-9def-abcdefabcde{digit}" for digit in "def")
NOT_AN_ID = ONE[:-1] + "g"


class Item(msgspec.Struct, kw_only=True):
    own: Uuid
    other: Uuid | None = None
    text: str = NOT_AN_ID


class Texts(msgspec.Struct, kw_only=True):
    text: str = NOT_AN_ID


class Whole(msgspec.Struct, kw_only=True):
    id: Uuid
    parent: Uuid | None = None
    text: str = NOT_AN_ID
    names: list[str] | None = None
    one: Texts | None = None
    texts: list[Texts] | None = None
    items: list[Item] | None = None


class OnlyItems(msgspec.Struct, kw_only=True):
    items: list[Item]


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        pytest.param(Whole(id=ONE), [ONE], id="one"),
        pytest.param(Whole(id=ONE, parent=TWO), [ONE, TWO], id="an optional one"),
        pytest.param(Whole(id=ONE, items=[]), [ONE], id="an empty list"),
        pytest.param(
            Whole(id=ONE, items=[Item(own=TWO), Item(own=THREE, other=ONE)]), [ONE, TWO, THREE, ONE], id="all"
        ),
        pytest.param(Whole(id=ONE, names=[NOT_AN_ID], one=Texts(), texts=[Texts()]), [ONE], id="texts are not ids"),
    ],
)
def test_ids_of_an_entity(entity: Whole, found: list[str]) -> None:
    ids = Ids(Whole)
    assert ids.joined(entity) == "".join(found)
    assert are_lower_uuids(ids.joined(entity).encode())
    assert ids.wrong(entity) is None
    assert ids.lowered(entity) == entity


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        pytest.param(Whole(id=NOT_AN_ID), "id", id="a field"),
        pytest.param(Whole(id=ONE, parent=NOT_AN_ID), "parent", id="an optional field"),
        pytest.param(Whole(id=ONE, items=[Item(own=NOT_AN_ID)]), "items[0].own", id="in a list"),
        pytest.param(
            Whole(id=ONE, items=[Item(own=ONE), Item(own=TWO, other=NOT_AN_ID)]), "items[1].other", id="the second"
        ),
        pytest.param(Whole(id=NOT_AN_ID, parent=NOT_AN_ID), "id", id="the first of two"),
        pytest.param(Whole(id=ONE.replace("-", "a")), "id", id="without hyphens"),
        pytest.param(Whole(id=f"{ONE[:-1]}\n"), "id", id="a line feed at the end"),
        pytest.param(Whole(id=f"{ONE[:-1]}é"), "id", id="a letter of two bytes"),
    ],
)
def test_the_path_of_what_is_not_a_uuid(wrong: Whole, path: str) -> None:
    assert Ids(Whole).wrong(wrong) == path
    assert not are_lower_uuids(Ids(Whole).joined(wrong).encode())


@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        pytest.param(Whole(id=ONE.upper()), Whole(id=ONE), id="a field"),
        pytest.param(Whole(id=ONE, parent=TWO.upper()), Whole(id=ONE, parent=TWO), id="an optional field"),
        pytest.param(
            Whole(id=ONE, items=[Item(own=TWO), Item(own=ONE, other=THREE.title())]),
            Whole(id=ONE, items=[Item(own=TWO), Item(own=ONE, other=THREE)]),
            id="in a list, in mixed case",
        ),
        pytest.param(Whole(id=ONE.upper(), text="ABC"), Whole(id=ONE, text="ABC"), id="a text stays"),
    ],
)
def test_ids_in_upper_case_are_lowered(upper: Whole, lower: Whole) -> None:
    ids = Ids(Whole)
    assert not are_lower_uuids(ids.joined(upper).encode())
    assert ids.wrong(upper) is None
    assert ids.lowered(upper) == lower


@pytest.mark.parametrize(
    ("ids", "has_ids"),
    [
        pytest.param(Ids(Whole), True, id="ids"),
        pytest.param(Ids(OnlyItems), True, id="ids in a list only"),
        pytest.param(Ids(Texts), False, id="no ids"),
    ],
)
def test_has_ids(ids: Ids, has_ids: bool) -> None:
    assert bool(ids) is has_ids
