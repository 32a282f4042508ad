"""Every resource is one complete row: what can be forgotten when one is added is found here, within seconds."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from devstack.sample import SampleCrm
from projector import mapping
from projector.reference import documents_of
from schemas import documents, events, resources
from schemas.resources import ACCESS_KINDS, BY_TOPIC, CONTACT, KINDS, LEAD, RESOURCES, Kind, Resource
from tests.harness import crm


def nothing(value: Any, path: str = "") -> Iterator[str]:
    """The paths of Struct fields that are not set."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from nothing(getattr(value, field), f"{path}.{field}")
    elif isinstance(value, list):
        for item in value:
            yield from nothing(item, f"{path}[]")
    elif value is None or value is msgspec.UNSET:
        yield path


def message(resource: Resource, entity: events.Entity) -> crm.Message:
    return crm.changed(resource, msgspec.to_builtins(entity))


def of_kind(kind: Kind) -> str:
    return kind.topic


def test_no_two_rows_share_a_name() -> None:
    assert len({kind.noun for kind in KINDS}) == len({kind.topic for kind in KINDS}) == len(KINDS)
    letters = [resource.letter for resource in RESOURCES]
    assert len({*letters, b"i"}) == len(letters) + 1, "`i` is the index of a contact's leads"


def test_every_row_is_in_a_list() -> None:
    """A row that is written down but in no list would be read by nobody."""
    rows = {id(row) for row in vars(resources).values() if isinstance(row, Kind)}
    assert rows == {id(row) for row in (*RESOURCES, *ACCESS_KINDS)}


@pytest.mark.parametrize("resource", RESOURCES, ids=of_kind)
def test_the_examples_set_every_field(resource: Resource) -> None:
    """Else the OpenAPI document, and the guard of `mapping.VERSION`, would miss a field."""
    assert type(resource.event_example) is resource.event
    assert type(resource.example) is resource.document
    assert list(nothing(resource.event_example)) == []
    assert list(nothing(resource.example)) == []


@pytest.mark.parametrize("resource", RESOURCES, ids=of_kind)
def test_the_example_event_becomes_the_example_document(resource: Resource) -> None:
    records = [message(each, each.event_example).record(offset) for offset, each in enumerate(RESOURCES)]
    entity = resource.event_example
    found = documents_of(records)[resource, entity.organization_id, entity.id]
    assert msgspec.json.decode(found) == msgspec.json.decode(msgspec.json.encode(resource.example))


@pytest.mark.parametrize("resource", RESOURCES, ids=of_kind)
def test_ids_come_first_in_a_document(resource: Resource) -> None:
    """The layout finds them by position."""
    assert resource.document.__struct_fields__[:2] == ("id", "organization_id")


def test_the_contact_of_a_lead_has_its_place() -> None:
    assert LEAD.document.__struct_fields__[2] == "contact_id"


@pytest.mark.parametrize(
    ("contact", "summary"),
    [
        pytest.param(
            ("id", "organization_id", "name", "x"), ("id", "name", "email"), id="a field of the summary is missing"
        ),
        pytest.param(("id", "organization_id", "email", "name", "x"), ("id", "name", "email"), id="another order"),
        pytest.param(("id", "organization_id", "name"), ("id", "name"), id="nothing after them"),
    ],
)
def test_a_summary_that_cannot_be_cut_out_is_a_clear_error(contact: tuple[str, ...], summary: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="must begin with the fields id, organization_id, name"):
        mapping._field_after_summary(contact, summary)


def test_the_summary_is_a_part_of_the_contact() -> None:
    """By name, with the same types."""
    contact = msgspec.structs.fields(documents.Contact)
    types = {field.name: field.type for field in contact}
    assert {
        field.name: field.type for field in msgspec.structs.fields(documents.ContactSummary)
    }.items() <= types.items()
    assert CONTACT.document is documents.Contact


def test_the_sample_has_every_kind() -> None:
    assert {message.topic for message in SampleCrm().initial()} == set(BY_TOPIC)
