"""Uses the generated Python client as an external tool would, and prints what came: `use_client.py <order in JSON>`.

It runs in the environment of the generated client, not in that of Leadview.
"""

import sys
import time
from uuid import UUID

import orjson
from leadview_client import AuthenticatedClient, Client
from leadview_client.api.contacts import get_contact
from leadview_client.api.leads import get_lead
from leadview_client.models import ErrorBody, Lead, RateLimitError, RetryableError


def main(order: dict[str, str]) -> None:
    lead, contact = UUID(order["lead"]), UUID(order["contact"])
    client = AuthenticatedClient(order["url"], order["key"])
    found = get_lead.sync_detailed(lead, client=client)
    assert isinstance(found.parsed, Lead), found
    show("200", found.status_code, found.parsed.events[0].event_timezone, found.parsed.stage.value)
    again = get_lead.sync_detailed(lead, client=client, if_none_match=found.headers["ETag"])
    show("304", again.status_code, again.content.decode())
    show("contact", get_contact.sync_detailed(contact, client=client).status_code)
    error("404", get_lead.sync_detailed(contact, client=client))
    error("401", get_lead.sync_detailed(lead, client=Client(order["url"])))
    error("403", get_lead.sync_detailed(lead, client=AuthenticatedClient(order["url"], order["disabled"])))

    limited = AuthenticatedClient(order["url"], order["limited"])
    answers = iter(lambda: get_lead.sync_detailed(lead, client=limited), None)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert isinstance(refused.parsed, RateLimitError), refused
    show(
        "429", refused.status_code, refused.parsed.error, [policy.value for policy in refused.parsed.violated_policies]
    )
    time.sleep(refused.parsed.retry_after)
    show("retry", get_lead.sync_detailed(lead, client=limited).status_code)

    away = get_lead.sync_detailed(lead, client=AuthenticatedClient(order["away"], order["key"]))
    assert isinstance(away.parsed, RetryableError), away
    show("503", away.status_code, away.parsed.error, away.parsed.retry_after > 0)


def error(name: str, answer: object) -> None:
    assert isinstance(answer.parsed, ErrorBody), answer
    show(name, answer.status_code, answer.parsed.error)


def show(*values: object) -> None:
    print(orjson.dumps(values).decode())


main(orjson.loads(sys.argv[1]))
