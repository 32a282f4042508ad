"""Keeps copies of leads up to date and prints each one that changed: `python poll.py ID...`, with API and API_KEY set.

Unchanged leads are answered with 304, which uses no quota. Quota that is left is used at once; when none is left,
`RateLimit` says how long to wait. Needs `pip install httpx`.
"""

import os
import re
import sys
import time
from collections.abc import Iterator

import httpx

PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "5"))  # between two rounds over all leads
TEMPORARY = {429, 502, 503, 504}  # 502 and 504 come from proxies on the way


class Poller:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.etags: dict[str, str] = {}

    def changed(self, ids: list[str]) -> Iterator[httpx.Response]:
        """Yields the response to each lead that is new, has changed, or is gone since the last round."""
        for lead_id in ids:
            response = self.get(lead_id)
            if response.status_code == 304:
                continue
            if response.status_code == 404:
                if self.etags.pop(lead_id, None):
                    yield response
                continue
            response.raise_for_status()  # 401 and 403 end the program: to ask again would not help
            self.etags[lead_id] = response.headers["ETag"]
            yield response

    def get(self, lead_id: str) -> httpx.Response:
        """Returns the first response that is not temporary, and waits until there is quota for the next request."""
        condition = {"If-None-Match": self.etags[lead_id]} if lead_id in self.etags else {}
        while True:
            try:
                response = self.client.get(f"/api/v1/ext/leads/{lead_id}", headers=condition)
            except httpx.TransportError as error:
                reason, seconds = repr(error), 1
            else:
                if response.status_code not in TEMPORARY:
                    time.sleep(seconds_without_quota(response.headers.get("RateLimit", "")))
                    return response
                reason, seconds = str(response.status_code), int(response.headers.get("Retry-After", 1))
            print(f"{reason}: asking again in {seconds} s", file=sys.stderr)
            time.sleep(seconds)


def seconds_without_quota(rate_limit: str) -> int:
    """Returns 0 while quota is left. `rate_limit` is like `"key";r=0;t=2, "organization";r=299;t=1`."""
    buckets = re.findall(r";r=(\d+);t=(\d+)", rate_limit)
    return max((int(seconds) for remaining, seconds in buckets if remaining == "0"), default=0)


def main(ids: list[str]) -> None:
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
    with httpx.Client(base_url=os.environ["API"], headers=headers) as client:
        poller = Poller(client)
        while True:
            for response in poller.changed(ids):
                print(response.status_code, response.url.path, response.headers.get("ETag", ""), flush=True)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit("usage: poll.py ID..."))
