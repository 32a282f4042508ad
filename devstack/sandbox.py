"""The sandbox: the same keys, ids and documents on every machine, for documentation and for others' tests.

`docs/sandbox.md` lists all of it for people, and `tests/service/test_make_run.py` compares that page with a running
sandbox. Its documents never change, except for one lead that changes every ten seconds. The reader's organization, its
full lead and its full contact are the examples of the OpenAPI document and of `docs/events.md`. It has `MORE_LEADS` for
programs that keep copies.

Everyone knows these keys. They open only organizations of the sandbox, where somebody has published them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NamedTuple, get_args

import redis
from msgspec.structs import replace

from devstack.child import StackFailed
from devstack.entities import gone
from devstack.sample import Message, Tenant, message
from devstack.threads import in_thread
from schemas import events, examples, names
from schemas.api_keys import RANDOM_LENGTH, key_hash, mint
from schemas.layouts import JOB_DUE
from schemas.resources import API_KEY, CONTACT, LEAD, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

CHANGE_SECONDS = 10
"""The changing lead has another version in each interval of the clock of this length."""
CHANGES_PER_SECOND = 1 / CHANGE_SECONDS
MORE_LEADS = 200
"""Of the reader: more than it may ask for at once."""

_CREATED = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
_UPDATED = datetime(2026, 2, 1, 12, 30, tzinfo=UTC)


def _id(suffix: str) -> str:
    return f"5a4db0e5-0000-4000-8000-{suffix:0>12}"


class Persona(NamedTuple):
    """An API key. `answer` is what its requests get, for people."""

    name: str
    organization_id: str
    answer: str
    status: Literal["active", "revoked"] = "active"
    expires_at: datetime | None = None

    @property
    def api_key(self) -> str:
        return mint(self.organization_id, f"Sandbox{self.name.title().replace('-', ''):0<{RANDOM_LENGTH - 7}}")


READER_ORGANIZATION = examples.ORGANIZATION_EVENT.id
_OTHER, _CLOSED, _SLOW, UNSTEADY_ORGANIZATION = map(_id, ("a2", "a3", "a4", "a5"))

PERSONAS = (
    Persona("reader", READER_ORGANIZATION, "200: reads the records"),
    Persona("other", _OTHER, "200: reads the records of another organization"),
    Persona("revoked", READER_ORGANIZATION, "401: the key was revoked", status="revoked"),
    Persona("expired", READER_ORGANIZATION, "401: the key has expired", expires_at=_UPDATED),
    Persona("no-access", _CLOSED, "403: API access of the organization is off"),
    Persona("slow", _SLOW, "429 after one request a minute"),
    Persona("unsteady", UNSTEADY_ORGANIZATION, "503 in the first 3 s of every 10 s, otherwise 200"),
)

_ORGANIZATIONS = (
    events.Organization(id=READER_ORGANIZATION, organization_id=READER_ORGANIZATION, version=1, api_access=True),
    events.Organization(id=_OTHER, organization_id=_OTHER, version=1, api_access=True),
    events.Organization(id=_CLOSED, organization_id=_CLOSED, version=1, api_access=False),
    events.Organization(
        id=_SLOW,
        organization_id=_SLOW,
        version=1,
        api_access=True,
        rate_limits=events.RateLimits(key=events.RateLimit(quota=1, window_seconds=60)),
    ),
    events.Organization(id=UNSTEADY_ORGANIZATION, organization_id=UNSTEADY_ORGANIZATION, version=1, api_access=True),
)


def _contact(suffix: str, organization_id: str) -> events.Contact:
    """Returns a contact with nothing but the required fields."""
    return events.Contact(
        id=_id(suffix),
        organization_id=organization_id,
        version=1,
        first_name="Sam",
        last_name="Okafor",
        created_at=_CREATED,
        updated_at=_UPDATED,
    )


def _lead(suffix: str, contact: events.Contact, stage: events.Stage = "NEW") -> events.Lead:
    """Returns a lead with nothing but the required fields."""
    return events.Lead(
        id=_id(suffix),
        organization_id=contact.organization_id,
        version=1,
        contact_id=contact.id,
        stage=stage,
        created_at=_CREATED,
        updated_at=_UPDATED,
    )


_STAGES = get_args(events.Stage)
_FULL_CONTACT, _FULL_LEAD = examples.CONTACT_EVENT, examples.LEAD_EVENT
_MINIMAL_CONTACT = _contact("c2", READER_ORGANIZATION)
_DELETED_CONTACT = _contact("c3", READER_ORGANIZATION)
_DELETED_LEAD = _lead("19", _MINIMAL_CONTACT)
_CHANGING_LEAD = _lead("14", _FULL_CONTACT, "IN_PROGRESS")
_MORE_LEADS = tuple(
    _lead(f"100{number:03}", _MINIMAL_CONTACT, _STAGES[number % len(_STAGES)]) for number in range(1, MORE_LEADS + 1)
)
_ELSEWHERE = tuple(
    _contact(f"c{number}1", organization)
    for number, organization in enumerate((_OTHER, _CLOSED, _SLOW, UNSTEADY_ORGANIZATION), 2)
)

_CONTACTS = (_FULL_CONTACT, _MINIMAL_CONTACT, _DELETED_CONTACT, *_ELSEWHERE)
_LEADS = (
    _FULL_LEAD,
    _lead("12", _MINIMAL_CONTACT),
    _lead("13", _DELETED_CONTACT, "STALE"),
    replace(
        _lead("15", _FULL_CONTACT, "QUOTE_SENT"),
        event_location="桜の間",
        attribution={"channel": "instagram", "visits": 3, "first_touch": {"paid": False}},
        tags=["VIP", "très spécial"],
        events=[
            events.RequestedEvent(id=_id("e1"), starts_at=datetime(2026, 10, 3, 8, 0, tzinfo=UTC), length_hours=8),
            events.RequestedEvent(id=_id("e2")),
        ],
        quote=events.Quote(total="1620000", currency="JPY"),
    ),
    replace(_lead("16", _FULL_CONTACT, "REJECTED"), archived_at=_UPDATED, attribution={}),
    _DELETED_LEAD,
    *_MORE_LEADS,
    *(_lead(f"{number}1", contact) for number, contact in enumerate(_ELSEWHERE, 2)),
)


class Sandbox:
    """The core product of the sandbox. `now` is the clock, in seconds since 1970."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        keys = {persona.name: persona.api_key for persona in PERSONAS}
        self.tenants = [
            Tenant(READER_ORGANIZATION, keys["reader"], _FULL_LEAD.id, _FULL_CONTACT.id),
            Tenant(_OTHER, keys["other"], _id("21"), _ELSEWHERE[0].id),
        ]

    def initial(self) -> Iterator[Message]:
        """Yields the whole state, organizations and keys first. The time of each event is now, as in an export."""
        yield from (self._message(ORGANIZATION, organization) for organization in _ORGANIZATIONS)
        yield from (self._message(API_KEY, _api_key(place, persona)) for place, persona in enumerate(PERSONAS, 1))
        yield from (self._message(CONTACT, contact) for contact in _CONTACTS)
        yield from (self._message(LEAD, lead) for lead in _LEADS)
        yield self._changed()
        yield self._message(CONTACT, gone(_DELETED_CONTACT), "deleted")
        yield self._message(LEAD, gone(_DELETED_LEAD), "deleted")

    def changes(self) -> Iterator[Message]:
        """Yields changes of the one lead that changes, without end. Each is what the lead is at that time."""
        while True:
            yield self._changed()

    def _changed(self) -> Message:
        """Returns the changing lead. It depends on the clock alone, so the version grows across restarts, too."""
        version = int(self._now()) // CHANGE_SECONDS
        stage: events.Stage = "QUOTE_SENT" if version % 2 else "IN_PROGRESS"
        updated_at = datetime.fromtimestamp(version * CHANGE_SECONDS, UTC)
        return self._message(LEAD, replace(_CHANGING_LEAD, version=version, stage=stage, updated_at=updated_at))

    def _message(self, kind: Kind, entity: events.Entity, verb: str = "changed") -> Message:
        time = datetime.fromtimestamp(self._now(), UTC)
        return message(
            kind, entity, event_id=f"{entity.id}-{entity.version}", source="/crm/sandbox", time=time, verb=verb
        )


def _api_key(place: int, persona: Persona) -> events.ApiKey:
    return events.ApiKey(
        id=_id(f"f{place}"),
        organization_id=persona.organization_id,
        version=1,
        hash=key_hash(persona.api_key),
        status=persona.status,
        created_at=_CREATED,
        name=persona.name,
        expires_at=persona.expires_at,
    )


PERIOD_SECONDS, AWAY_SECONDS = 10, 3
"""The organization is away in the first `AWAY_SECONDS` of each period of the clock (UTC)."""

# An organization that is not stored yet, or deleted, is left alone.
_MARK = "if redis.call('GETRANGE', KEYS[1], 0, 0) == 'L' then redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2]) end"
_REPLAY_IS_DUE, _NOTHING_IS_DUE = "R", "-"


@contextmanager
def unsteady(settings: ProjectorSettings, organization_id: str) -> Iterator[None]:
    """Inside of it, requests of this organization meet 503 now and then, by the clock.

    It sets the mark (`JOB_DUE`) that a projector sets while it replays the records of a recreated organization, and
    takes it away again. So the API answers as it does in that state; nothing in the API knows of the sandbox.
    Raises StackFailed if the URL is not that of a single Redis.
    """
    try:
        client = redis.Redis.from_url(
            settings.redis_url, username=settings.redis_username, password=settings.redis_password
        )
    except ValueError as error:
        raise StackFailed(f"The sandbox needs a single Redis, with a redis:// URL: {error}") from error
    with in_thread(partial(_follow_the_clock, client, organization_id)):
        yield


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
