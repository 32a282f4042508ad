"""Reads a lead as it is after a change: `python read_as_of.py ID TIME`, with API and API_KEY set.

TIME is when the core product answered that the change is done, in RFC 3339, such as 2026-11-23T13:37:00.123Z. It prints
the lead, or that there is none, as soon as the response contains every change of that time. It gives up after a minute.
"""

import argparse
import os
import sys
import time
from datetime import datetime
from http.client import IncompleteRead
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import UUID

PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 60
TIMEOUT_SECONDS = 10


def read_as_of(lead_id: UUID, changed_at: datetime) -> bytes | None:
    """Returns the lead, or None if it does not exist. Raises SystemExit if to ask again would not help, or did not."""
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
    request = Request(f"{os.environ['API'].rstrip('/')}/api/v1/ext/leads/{lead_id}", headers=headers)
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        pause = PAUSE_SECONDS
        try:
            try:
                response = urlopen(request, timeout=TIMEOUT_SECONDS)
            except HTTPError as error:
                response = error
            with response:
                status, fields, body = response.status, response.headers, response.read()
        except (OSError, IncompleteRead) as error:
            reason = str(error)
        else:
            as_of = fields.get("Data-As-Of")
            if status not in (200, 404, 429) and status < 500:
                raise SystemExit(f"{status}: {body.decode()}")
            if as_of and datetime.fromisoformat(as_of) >= changed_at:
                return body if status == 200 else None
            reason, pause = f"{status}, Data-As-Of: {as_of}", float(fields.get("Retry-After", pause))
        if time.monotonic() + pause > until:
            raise SystemExit(f"{reason}: gave up after {PATIENCE_SECONDS} s")
        print(f"{reason}: asking again in {pause:g} s", file=sys.stderr, flush=True)
        time.sleep(pause)


def moment(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} has no offset from UTC: add Z, or one such as +02:00")
    return at


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", metavar="ID", type=UUID)
    parser.add_argument("time", metavar="TIME", type=moment)
    arguments = parser.parse_args()
    if not {"API", "API_KEY"} <= os.environ.keys():
        parser.error("set the environment variables API and API_KEY")
    if not os.environ["API"].startswith(("http://", "https://")):
        parser.error("API begins with https://")
    lead = read_as_of(arguments.id, arguments.time)
    print(lead.decode() if lead else "there is no such lead")
