"""Changes of leads and contacts that Leadview has already stored.

`Changes` puts a mark into each event, by which its document is recognized over HTTP. Each function makes one usual
change.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.crm import Tenant, request
from bench.prober import Event
from projector.record import Record
from schemas import resources

FIRST_VERSION = 1_000
"""Higher than the versions of all sample data."""
_LATER = "2026-03-02T09:30:00Z"


class Changes:
    """Changes these records in turn, over and over. Each event has a higher version than the one before."""

    def __init__(self, tenants: Sequence[Tenant], records: Sequence[Record]) -> None:
        self._keys = {tenant.organization_id: tenant.key for tenant in tenants}
        self._records = cycle(records)
        self._version = FIRST_VERSION

    def take(self, count: int, probe_every: int | None = None) -> list[Event]:
        """The next changes. Every `probe_every`th is probed over HTTP; without it, none."""
        probed = set(range(0, count, probe_every)) if probe_every else set[int]()
        return [self._event(next(self._records), probed=number in probed) for number in range(count)]

    def _event(self, record: Record, *, probed: bool) -> Event:
        self._version += 1
        mark = f"v{self._version}@example.com"
        return Event(
            record.topic,
            record.key or b"",
            changed(record, self._version, mark),
            f'"{mark}"'.encode(),
            self._request(record) if probed else None,
        )

    def _request(self, record: Record) -> bytes:
        organization_id, _, entity_id = (record.key or b"").decode().partition(":")
        return request(record.kind.topic, entity_id, self._keys[organization_id])


def is_lead(record: Record) -> bool:
    return record.kind is resources.LEAD


def changed(record: Record, version: int, mark: str) -> bytes:
    """The event of a newer version of a lead or contact, whose document contains the mark."""
    event = msgspec.json.decode(record.value or b"")
    return _encode(event, version, {"referrer" if record.kind is resources.LEAD else "email": mark})


def another_note(lead: Record) -> Record:
    """A newer record of the lead: it has one more note, and its contact stays."""
    event = msgspec.json.decode(lead.value or b"")
    counts = event["data"].get("counts") or {}
    fields = {"updated_at": _LATER, "counts": counts | {"notes": (counts.get("notes") or 0) + 1}}
    return replace(lead, value=_encode(event, FIRST_VERSION, fields))


def another_custom_field(contact: Record) -> Record:
    """A newer record of the contact, with another custom field. Leads show none of these: the summary stays."""
    event = msgspec.json.decode(contact.value or b"")
    custom_fields = (event["data"].get("custom_fields") or {}) | {"last_call": "2026-03-02"}
    return replace(contact, value=_encode(event, FIRST_VERSION, {"updated_at": _LATER, "custom_fields": custom_fields}))


def another_phone_number(contact: Record) -> Record:
    """A newer record of the contact, with another phone number. Each of its leads shows it: the summary changes."""
    event = msgspec.json.decode(contact.value or b"")
    return replace(contact, value=_encode(event, FIRST_VERSION, {"updated_at": _LATER, "phone": "+49 30 55501234"}))


def _encode(event: dict[str, Any], version: int, fields: Mapping[str, Any]) -> bytes:
    event["id"] = f"change-{version}"
    event["data"] |= {"version": version, **fields}
    return msgspec.json.encode(event)
