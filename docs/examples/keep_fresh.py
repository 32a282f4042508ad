"""Keeps copies of leads fresh, and prints each change: `python keep_fresh.py ID...`, with API and API_KEY set.

It prints 200 with the ETag of a copy, or 404 if there is no such lead, or no longer. The copies are in memory alone:
store yours with their ETags.

The first 60 leads are waited for (`Prefer: wait`): that costs nothing until they change, and then the answer comes at
once. The others are asked for in turn with their ETags, which costs nothing as long as they stay the same. Needs
`pip install requests`.
"""

import os
import random
import re
import sys
import threading
import time
from queue import Queue

import requests

WAITING = 60  # all programs of an organization together have 64 places
WAIT_SECONDS = 25  # many proxies end a request after 30
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "5"))  # between two rounds over the leads that are not waited for
TEMPORARY = {408, 429, 500, 502, 503, 504}  # 502 and 504 come from proxies on the way
LONGEST_PAUSE_SECONDS = 30
BROKEN = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class Copies:
    def __init__(self, api: str, key: str) -> None:
        self.leads: dict[str, dict | None] = {}  # None: there is no such lead
        self.etags: dict[str, str] = {}
        self.url = f"{api.rstrip('/')}/api/v1/ext/leads"
        self.headers = {"Authorization": f"Bearer {key}"}
        self.quota_at = 0.0  # when there is quota for the next request
        self.failures: Queue[BaseException] = Queue()

    def keep_fresh(self, ids: list[str]) -> None:
        """Ends only with an error: a key that is refused, for example."""
        session = requests.Session()
        for lead_id in ids:
            self.refresh(session, lead_id)
        for lead_id in ids[:WAITING]:
            self.start(self.wait_for, lead_id)
        self.start(self.ask_in_turn, ids[WAITING:])
        raise self.failures.get()

    def start(self, work, argument) -> None:
        """Do this work in a thread of its own, with connections of its own."""

        def guarded() -> None:
            try:
                work(requests.Session(), argument)
            except BaseException as error:
                self.failures.put(error)

        threading.Thread(target=guarded, daemon=True).start()

    def wait_for(self, session: requests.Session, lead_id: str) -> None:
        while True:
            response = self.refresh(session, lead_id, {"Prefer": f"wait={WAIT_SECONDS}"})
            if "Preference-Applied" not in response.headers:  # all places were taken
                time.sleep(PAUSE_SECONDS)

    def ask_in_turn(self, session: requests.Session, ids: list[str]) -> None:
        while True:
            time.sleep(PAUSE_SECONDS)
            for lead_id in ids:
                self.refresh(session, lead_id)

    def refresh(self, session: requests.Session, lead_id: str, prefer: dict[str, str] | None = None):
        """Bring the copy of a lead up to date. Returns the response."""
        condition = {"If-None-Match": self.etags[lead_id]} if lead_id in self.etags else {}
        response = self.get(session, f"{self.url}/{lead_id}", {**self.headers, **condition, **(prefer or {})})
        if response.status_code == 200:
            self.leads[lead_id], self.etags[lead_id] = response.json(), response.headers["ETag"]
            say(f"200 {lead_id} {self.etags[lead_id]}")
        elif response.status_code == 404 and "Data-As-Of" in response.headers:
            self.etags.pop(lead_id, None)
            if self.leads.get(lead_id, {}) is not None:
                say(f"404 {lead_id}")
            self.leads[lead_id] = None
        elif response.status_code != 304:  # 401, 403 and a wrong path, for example: to ask again would not help
            raise SystemExit(f"{response.status_code}: {response.text}")
        return response

    def get(self, session: requests.Session, url: str, headers: dict[str, str]) -> requests.Response:
        """Returns the first response that is not temporary."""
        failures = 0
        while True:
            time.sleep(max(0.0, self.quota_at - time.monotonic()))
            pause = random.uniform(0, min(2**failures, LONGEST_PAUSE_SECONDS))
            try:
                response = session.get(url, headers=headers, timeout=WAIT_SECONDS + 10)
            except BROKEN as error:
                reason = type(error).__name__
            else:
                quota_in = seconds_without_quota(response.headers.get("RateLimit", ""))
                if not is_temporary(response):
                    self.quota_at = max(self.quota_at, time.monotonic() + quota_in)
                    return response
                reason, pause = str(response.status_code), float(response.headers.get("Retry-After", pause))
            failures += 1
            say(f"{reason}: asking again in {pause:.1f} s", sys.stderr)
            time.sleep(pause)


def is_temporary(response: requests.Response) -> bool:
    """Returns whether to ask again. A 404 without `RateLimit` is of a wrong path, not of a record. One of a record
    without `Data-As-Of` comes while the service does not know how current its answer is.
    """
    is_unsure = "RateLimit" in response.headers and "Data-As-Of" not in response.headers
    return response.status_code in TEMPORARY or (response.status_code == 404 and is_unsure)


def say(line: str, file=sys.stdout) -> None:
    print(f"{line}\n", end="", file=file, flush=True)  # in one piece, because all threads print


def seconds_without_quota(rate_limit: str) -> int:
    """Returns 0 while quota is left. `rate_limit` is like `"key";r=0;t=2, "organization";r=299;t=1`."""
    buckets = re.findall(r";r=(\d+);t=(\d+)", rate_limit)
    return max((int(seconds) for remaining, seconds in buckets if remaining == "0"), default=0)


if __name__ == "__main__":
    API, API_KEY, IDS = os.environ.get("API"), os.environ.get("API_KEY"), sys.argv[1:]
    if not (API and API_KEY and IDS):
        sys.exit("usage: keep_fresh.py ID..., with API and API_KEY set")
    Copies(API, API_KEY).keep_fresh(IDS)
