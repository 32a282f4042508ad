"""Uses the client of openapi-python-client."""

from uuid import UUID

from flow import Answer, use
from leadview_client import AuthenticatedClient, Client
from leadview_client.api.contacts import get_contact
from leadview_client.api.leads import get_lead
from leadview_client.models import ErrorBody, RateLimitError, RetryableError


def read(operation: object, url: str, key: str | None, document: str, tag: str | None) -> Answer:
    client = AuthenticatedClient(url, key) if key else Client(url)
    condition = {"if_none_match": tag, "prefer": "wait=1"} if tag else {}
    response = operation.sync_detailed(UUID(document), client=client, **condition)
    return Answer(int(response.status_code), response.headers.get("ETag"), response.parsed)


use(
    lambda *request: read(get_lead, *request),
    lambda *request: read(get_contact, *request),
    lambda contact: contact.custom_fields.to_dict(),
    (ErrorBody, RateLimitError, RetryableError),
)
