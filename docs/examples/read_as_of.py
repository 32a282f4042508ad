"""Reads a lead as it is after a change: `python read_as_of.py ID TIME`, with API and API_KEY set.

TIME is when the core product answered that the change is done, in RFC 3339, such as 2026-11-23T13:37:00.123Z. It prints
the lead, or that there is none, as soon as the response contains every change of that time.
"""

import os
import sys
import time
from datetime import datetime
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PAUSE_SECONDS = 0.5


def read_as_of(lead_id: str, changed_at: datetime) -> bytes | None:
    """Returns the lead, or None if it does not exist."""
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
    request = Request(f"{os.environ['API']}/api/v1/ext/leads/{lead_id}", headers=headers)
    while True:
        try:
            response = urlopen(request)
        except HTTPError as error:
            response = error
        with response:
            as_of = response.headers.get("Data-As-Of")
            if as_of and datetime.fromisoformat(as_of) >= changed_at:
                return response.read() if response.status == 200 else None
            if response.status in (401, 403):
                raise SystemExit(f"{response.status}: {response.read().decode()}")
            time.sleep(float(response.headers.get("Retry-After", PAUSE_SECONDS)))


if __name__ == "__main__":
    lead = read_as_of(sys.argv[1], datetime.fromisoformat(sys.argv[2]))
    print(lead.decode() if lead else "there is no such lead")
