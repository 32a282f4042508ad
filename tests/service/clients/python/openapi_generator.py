"""Uses the client of openapi-generator: each status but 200 is an exception, also 304. Unless it is told otherwise, it
waits for Retry-After itself, up to three times.
"""

from uuid import UUID

from flow import Answer, use
from openapi_client import ApiClient, ApiException, Configuration, ContactsApi, ErrorBody, LeadsApi


def read(url: str, key: str | None, document: str, tag: str | None, name: str) -> Answer:
    client = ApiClient(Configuration(url, access_token=key, retries=0))
    if name == "lead":
        operation = LeadsApi(client).get_lead_with_http_info
    else:
        operation = ContactsApi(client).get_contact_with_http_info
    try:
        response = operation(UUID(document), if_none_match=tag)
    except ApiException as refusal:
        return Answer(refusal.status, None, refusal.data)
    headers = {
        name.lower(): value for name, value in response.headers.items()
    }  # a dictionary with the names as they came
    return Answer(response.status_code, headers["etag"], response.data)


use(
    lambda *request: read(*request, "lead"),
    lambda *request: read(*request, "contact"),
    lambda contact: {name: value and value.actual_instance for name, value in contact.custom_fields.items()},
    ErrorBody,
)
