"""Requests to the API, as the bytes of whole HTTP requests."""

from collections.abc import Sequence
from random import Random

from bench.crm import Tenant

_COUNT = 1000


def for_leads(tenants: Sequence[Tenant], count: int = _COUNT) -> list[bytes]:
    """Requests for randomly chosen leads of these tenants."""
    random = Random(len(tenants))  # noqa: S311 - it must be repeatable
    chosen = random.choices(tenants, k=count)
    return [for_lead(tenant, random.choice(tenant.leads)) for tenant in chosen]


def for_lead(tenant: Tenant, lead_id: str) -> bytes:
    return get("leads", lead_id, tenant.key)


def get(kind: str, record_id: str, key: str) -> bytes:
    """`kind` is the topic of a resource, such as `leads`."""
    return (
        f"GET /api/v1/ext/{kind}/{record_id} HTTP/1.1\r\n"
        "Host: api.example.com\r\n"
        f"Authorization: Bearer {key}\r\n"
        "Accept: application/json\r\n"
        "User-Agent: bench\r\n"
        "\r\n"
    ).encode()
