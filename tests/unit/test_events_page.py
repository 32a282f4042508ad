"""docs/events.md and the AsyncAPI document: every example is what the page says it is."""

import re
from typing import Any

import jsonschema_rs
import orjson
import pytest

from docs.generate import asyncapi, events_page
from docs.generate.__main__ import ROOT
from docs.generate.json_schema import components, descriptions, event_types
from projector.errors import BadRecord
from projector.interpret import interpret
from projector.record import Record
from schemas.resources import KINDS, LEAD, ORGANIZATION

PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
GOOD = [
    orjson.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.partition("## All events")[2], re.DOTALL)
]
DOCUMENT = asyncapi.document()
MESSAGES = DOCUMENT["components"]["messages"]


def record(event: Any, headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    """Returns a record of this event; in binary mode if there are headers."""
    kind = next(kind for kind in KINDS if event["type"].startswith(f"crm.{kind.noun}."))
    ids = [event["data"]["organization_id"], *([] if kind is ORGANIZATION else [event["data"]["id"]])]
    value = orjson.dumps(event["data"] if headers else event)
    return Record(f"crm.{kind.topic}", 0, 0, 0, ":".join(ids).encode(), value, headers, kind)


def test_there_is_a_good_example_of_each_type() -> None:
    assert sorted(event["type"] for event in GOOD) == sorted(event_types())


@pytest.mark.parametrize("event", GOOD, ids=lambda event: event["type"])
def test_a_good_example_is_good_in_both_modes(event: Any) -> None:
    intent, time = interpret(record(event))
    headers = tuple((f"ce_{name}", value.encode()) for name, value in event.items() if name != "data")
    assert interpret(record(event, headers)) == (intent, time)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(bad, id=f"{type_}, {bad.fault}")
        for type_ in event_types()
        for bad in events_page.bad_examples(type_)
    ],
)
def test_a_bad_example_has_the_printed_reason(bad: events_page.Bad) -> None:
    assert f"| {bad.fault} | {bad.reason} |" in PAGE
    with pytest.raises(BadRecord) as raised:
        interpret(record(bad.event))
    assert raised.value.reason == bad.reason


def test_the_lead_to_paste_is_good() -> None:
    page = re.sub(r"\$\{?ORGANIZATION\}?", LEAD.event_example.organization_id, PAGE)
    [line] = re.findall(r"^(\S+?)\|(\{.*\})$", page, re.MULTILINE)
    event = orjson.loads(line[1])
    assert record(event).key == line[0].encode()
    interpret(record(event))


def test_every_field_has_a_description() -> None:
    structs = [*event_types().values()]
    for schema in components(structs, "{name}")[1].values():
        without = [name for name, field in schema["properties"].items() if "description" not in field]
        assert set(without) <= {"type", "data"}, f"{schema['title']}: write a text below {without} in schemas/events.py"
    assert all(descriptions(struct) for struct in structs)


@pytest.mark.parametrize("name", [name for name, message in MESSAGES.items() if "examples" in message])
def test_the_examples_of_asyncapi_fit_its_schemas(name: str) -> None:
    message = MESSAGES[name]
    for part in {"payload", "headers"} & message.keys():
        schema = {"components": DOCUMENT["components"], **message[part]}
        for example in message["examples"]:
            jsonschema_rs.validate(schema, example[part])


def test_asyncapi_has_each_topic_and_type() -> None:
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == {f"crm.{kind.topic}" for kind in KINDS}
    assert {name.removesuffix(".binary") for name in MESSAGES if "tombstone" not in name} == set(event_types())
