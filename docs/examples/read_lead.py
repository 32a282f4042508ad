"""Reads a lead with a generated client (docs/reading.md): `python read_lead.py`, with API, API_KEY and LEAD_ID set."""

import os
import time
from uuid import UUID

from leadview_client import AuthenticatedClient
from leadview_client.api.leads import get_lead

client = AuthenticatedClient(os.environ["API"], os.environ["API_KEY"])


def read(lead_id, etag=None):
    """Returns the response to a request that was neither limited nor met an outage."""
    condition = {"if_none_match": etag} if etag else {}
    while True:
        response = get_lead.sync_detailed(UUID(lead_id), client=client, **condition)
        if response.status_code not in (429, 502, 503, 504):
            return response
        time.sleep(int(response.headers.get("Retry-After", 1)))


first = read(os.environ["LEAD_ID"])
if first.status_code != 200:
    raise SystemExit(f"{first.parsed.error}: {first.parsed.message}")
print(first.parsed.stage, first.headers["ETag"])

again = read(os.environ["LEAD_ID"], etag=first.headers["ETag"])
print("unchanged" if again.status_code == 304 else again.parsed.stage)
