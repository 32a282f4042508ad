"""Changes of leads and contacts that Leadview has already, each with a mark that tells when it is served."""

from collections.abc import Sequence
from itertools import cycle

import msgspec

from bench import requests
from bench.crm import Tenant
from bench.prober import Event
from projector.record import Kind, Record

FIRST_VERSION = 1_000
"""Above those of all sample data."""


class Changes:
    """Goes round these records: each time an entity comes again, its version is higher."""

    def __init__(self, tenants: Sequence[Tenant], records: Sequence[Record]) -> None:
        self._keys = {tenant.organization_id: tenant.key for tenant in tenants}
        self._records = cycle(records)
        self._version = FIRST_VERSION

    def take(self, count: int, probe_every: int) -> list[Event]:
        """The next changes; one of so many is to be looked for over HTTP."""
        return [self._event(next(self._records), probed=number % probe_every == 0) for number in range(count)]

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
        organization_id, _, own = (record.key or b"").decode().partition(":")
        return requests.get("leads" if record.kind == Kind.LEAD else "contacts", own, self._keys[organization_id])


def changed(record: Record, version: int, mark: str) -> bytes:
    """The event of a lead or contact as one of this version; what it shows contains the mark."""
    event = msgspec.json.decode(record.value or b"")
    event["id"] = f"change-{version}"
    event["data"] |= {"version": version, "referrer" if record.kind == Kind.LEAD else "email": mark}
    return msgspec.json.encode(event)
