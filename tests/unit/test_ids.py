"""Ids in events: found by the type of the field, checked, and in lower case once an event is read."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from docs.generate.json_schema import examples
from projector.change import read
from projector.errors import BadRecord
from schemas import resources
from schemas.envelopes import event_type
from schemas.events import RequestedEvent
from schemas.ids import Ids
from tests.harness import crm
from tests.harness.crm import Json, Message
from tests.harness.projection import intent_of

AN_ID = "abcdefab-cdef-4abc-9def-abcdefabcded"
NOT_AN_ID = AN_ID[:-1] + "g"


class OnlyEvents(msgspec.Struct):
    """Unlike every event, it has no id of its own."""

    events: list[RequestedEvent]


def test_wrong_id_in_a_list_is_found() -> None:
    ids = Ids(OnlyEvents)
    assert ids
    assert ids.wrong(OnlyEvents([RequestedEvent(id=NOT_AN_ID)])) == "events[0].id"


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def mapped(value: Any, change: Callable[[str, str], str], path: str = "$.data") -> Any:
    """Returns `value` with each id in it replaced by `change(path, id)`."""
    match value:
        case dict():
            return {name: mapped(inner, change, f"{path}.{name}") for name, inner in value.items()}
        case list():
            return [mapped(inner, change, f"{path}[{number}]") for number, inner in enumerate(value)]
        case str() if UUID.fullmatch(value):
            return change(path, value)
    return value


def example(kind: resources.Kind) -> Json:
    """Returns the data of an event with every field, a list of two where there is one, and another id in each; all of
    these contain letters.
    """
    numbers = iter(range(100))
    data: Json = dict(examples()[event_type(kind, "changed")]["data"])
    if kind is resources.LEAD:
        data["events"] = data["events"] * 2
    data = mapped(data, lambda _path, _id: f"abcdefab-cdef-4abc-9def-abcdefabcd{next(numbers):02}")
    return data | {"organization_id": data["id"]} if kind is resources.ORGANIZATION else data


def message(kind: resources.Kind, data: Json) -> Message:
    """An event with this data. Its key is that of the example: ids in lower case."""
    own = example(kind)
    key = crm.message_key(kind, own["organization_id"], own["id"])
    return msgspec.structs.replace(crm.changed(kind, data), key=key)


def paths_of(kind: resources.Kind) -> list[str]:
    """Returns the path of each id in the example."""
    found: dict[str, str] = {}
    mapped(example(kind), found.setdefault)
    return [*found]


def test_the_examples_have_every_id() -> None:
    """The tests below are about every id only as long as the examples have them all."""
    own = {"$.data.id", "$.data.organization_id"}
    others = {f"$.data.{name}" for name in ("contact_id", "assigned_to", "events[0].id", "events[1].id")}
    assert set(paths_of(resources.LEAD)) >= own | others
    assert all(set(paths_of(kind)) >= own for kind in resources.KINDS)


@pytest.mark.parametrize("kind", resources.KINDS, ids=lambda kind: kind.noun)
def test_ids_in_upper_case_are_read_and_written_in_lower_case(kind: resources.Kind) -> None:
    lower, upper = message(kind, example(kind)), message(kind, mapped(example(kind), lambda _, id_: id_.upper()))
    assert upper.value != lower.value
    for sent in (upper, crm.binary(upper)):
        entity = msgspec.convert(example(kind), kind.event)
        assert read(sent.record()).entity == entity, "ids in schemas/events.py have the type Uuid"
        assert intent_of(sent.record()) == intent_of(lower.record())


@pytest.mark.parametrize(
    ("kind", "path"),
    [pytest.param(kind, path, id=f"{kind.noun} {path}") for kind in resources.KINDS for path in paths_of(kind)],
)
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(NOT_AN_ID, id="a wrong letter"),
        pytest.param(NOT_AN_ID.upper(), id="a wrong letter, upper case"),
        pytest.param(NOT_AN_ID[:-1], id="too short"),
        pytest.param(NOT_AN_ID + "0", id="too long"),
        pytest.param("", id="empty"),
        pytest.param(AN_ID.replace("-", "a"), id="without hyphens"),
        pytest.param(AN_ID[:-1] + "\n", id="a line feed at the end"),
        pytest.param(AN_ID[:-1] + "é", id="a letter of two bytes"),
    ],
)
def test_what_is_not_a_uuid_is_a_bad_record(kind: resources.Kind, path: str, wrong: str) -> None:
    data = mapped(example(kind), lambda at, id_: wrong if at == path else id_)
    with pytest.raises(BadRecord) as caught:
        read(message(kind, data).record())
    is_own = path in ("$.data.id", "$.data.organization_id") and len(wrong) == len(NOT_AN_ID)
    reason = f"`{path}` is not that of the message key" if is_own else f"`{path}`"
    assert reason in caught.value.reason
    assert not UUID.search(caught.value.reason)
    assert NOT_AN_ID[:-1] not in caught.value.reason
