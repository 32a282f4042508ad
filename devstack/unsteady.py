"""Makes requests of one organization of the sandbox meet 503 now and then, by the clock.

It sets the mark (`JOB_DUE`) that a projector sets while it replays the records of a recreated organization, and takes
it away again. So the API answers as it does in that state; nothing in the API knows of the sandbox.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis

from devstack.failure import StackFailed
from schemas import names
from schemas.layouts import JOB_DUE
from schemas.settings import ProjectorSettings

PERIOD_SECONDS, AWAY_SECONDS = 10, 3
"""The organization is away in the first `AWAY_SECONDS` of each period of the clock (UTC)."""

# An organization that is not stored yet, or deleted, is left alone.
_MARK = "if redis.call('GETRANGE', KEYS[1], 0, 0) == 'L' then redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2]) end"
_REPLAY_IS_DUE, _NOTHING_IS_DUE = "R", "-"


@contextmanager
def unsteady(settings: ProjectorSettings, organization_id: str) -> Iterator[None]:
    """The organization is unsteady inside of it. Raises StackFailed if the URL is not that of a single Redis."""
    try:
        client = redis.Redis.from_url(
            settings.redis_url, username=settings.redis_username, password=settings.redis_password
        )
    except ValueError as error:
        raise StackFailed(f"The sandbox needs a single Redis, with a redis:// URL: {error}") from error
    stop = threading.Event()
    thread = threading.Thread(target=_follow_the_clock, args=(client, organization_id, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow_the_clock(client: redis.Redis, organization_id: str, stop: threading.Event) -> None:
    """Run until `stop` is set. While Redis cannot be reached, the organization stays as it is."""
    while not stop.is_set():
        place = time.time() % PERIOD_SECONDS
        is_away = place < AWAY_SECONDS
        _mark(client, organization_id, _REPLAY_IS_DUE if is_away else _NOTHING_IS_DUE)
        stop.wait((AWAY_SECONDS if is_away else PERIOD_SECONDS) - place)
    _mark(client, organization_id, _NOTHING_IS_DUE)


def _mark(client: redis.Redis, organization_id: str, mark: str) -> None:
    with suppress(redis.RedisError):
        client.eval(_MARK, 1, names.organization(organization_id), JOB_DUE.start, mark)
