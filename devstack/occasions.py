"""The inquiries in the sample data: events at places, quotes, and how the customers found the venue."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from schemas import events
from schemas.fields import CustomFieldValue


class Place(NamedTuple):
    """The location of an organization. `offset_hours` is that of standard time, which is exact enough for samples."""

    zone_name: str
    offset_hours: float
    currency: str
    digits: int
    """Decimal places of the currency."""
    rooms: tuple[str, ...]

    @property
    def zone(self) -> timezone:
        return timezone(timedelta(hours=self.offset_hours))


PLACES = (
    Place("Europe/London", 0, "GBP", 2, ("Glasshouse", "Boathouse", "Great Hall", "The Orangery")),
    Place("America/New_York", -5, "USD", 2, ("Rooftop", "Loft 7", "Ballroom", "Pier Deck")),
    Place("Asia/Tokyo", 9, "JPY", 0, ("桜の間", "庭園テラス", "Sky Lounge")),
    Place("Europe/Berlin", 1, "EUR", 2, ("Großer Saal", "Gewächshaus", "Dachterrasse")),
    Place("Asia/Kolkata", 5.5, "INR", 2, ("Durbar Hall", "Mango Lawn")),
    Place("Asia/Kuwait", 3, "KWD", 3, ("قاعة اللؤلؤة", "Diwan")),
)
TAGS = ("HOT_LEAD", "VIP", "RETURNING", "NEEDS_CALL", "OUTDOOR", "BIG_BUDGET", "LAST_MINUTE", "très spécial")

# By kind of event: usual number of guests, hours, and price per guest in euros.
_KINDS = {
    "wedding": (120, 10.0, 140),
    "conference": (250, 8.0, 85),
    "corporate_dinner": (60, 4.5, 95),
    "birthday": (45, 5.0, 60),
    "quinceanera": (150, 6.0, 70),
    "bar_mitzvah": (110, 6.0, 90),
    "product_launch": (180, 3.5, 110),
    "workshop": (20, 7.5, 55),
    "charity_gala": (300, 5.0, 150),
}
_WORTH = {"GBP": "0.85", "USD": "1.1", "JPY": "162", "EUR": "1", "INR": "92", "KWD": "0.33"}
_REFERRERS = (
    "https://www.example.com/venues/compare?city=berlin",
    "https://search.example.net/?q=wedding+venue",
    "Recommended by a friend",
    "Trade fair 2026",
)
_CAMPAIGNS = ("spring", "last-minute", "winter-gala", "été")


def kind(random: Random) -> str:
    return random.choice(tuple(_KINDS))


def requested_events(random: Random, place: Place, kind: str, now: datetime) -> list[events.RequestedEvent]:
    """Returns up to three events, usually one. Their times are in the time zone of the place."""
    count = random.choices((0, 1, 2, 3), weights=(1, 6, 2, 1))[0]
    return [_requested(random, place, kind, now) for _ in range(count)]


def quote(random: Random, place: Place, kind: str) -> events.Quote:
    """Returns a quote. Its total has as many decimal places as the currency."""
    guests, _, price = _KINDS[kind]
    total = Decimal(_WORTH[place.currency]) * price * guests * random.randrange(60, 160) / 100
    cents = Decimal(random.randrange(1000)) / 1000
    step = Decimal(1).scaleb(-place.digits)
    return events.Quote(total=str((total + cents).quantize(step)), currency=place.currency)


def referrer(random: Random) -> str | None:
    return random.choice((*_REFERRERS, None, None))


def attribution(random: Random) -> dict[str, Any] | None:
    """Returns what a web form collected: sometimes nothing, sometimes nested objects."""
    tracked = {
        "utm_source": random.choice(("newsletter", "search", "social")),
        "utm_medium": random.choice(("cpc", "email", "organic")),
        "utm_campaign": random.choice(_CAMPAIGNS),
        "landing_page": f"https://www.example.com/{kind(random)}",
    }
    nested = tracked | {"first_touch": {"channel": "instagram", "visits": random.randrange(1, 9)}, "consent": True}
    return random.choice((None, {}, tracked, tracked, nested))


def custom_fields(random: Random) -> dict[str, CustomFieldValue]:
    """Returns some fields of a form, which have values of every type. A cleared field is null; most are absent."""
    fields: dict[str, CustomFieldValue] = {
        "company": random.choice(("Kite & Anchor", "株式会社みどり", "Fjord ApS", 'The "Old" Mill')),
        "budget": random.randrange(20, 400) * 100,
        "budget_per_guest": random.randrange(40, 250) + 0.5,
        "newsletter": random.random() < 0.5,
        "dietary_needs": random.sample(("vegan", "halal", "kosher", "no nuts", "gluten-free"), random.randrange(4)),
        "anniversary": None,
        "notes": "Prefers to be called after 6 pm.\nSpeaks little English.",
    }
    return {name: value for name, value in fields.items() if random.random() < 0.4}


def _requested(random: Random, place: Place, kind: str, now: datetime) -> events.RequestedEvent:
    guests, hours, _ = _KINDS[kind]
    day = (now + timedelta(days=random.randrange(20, 400))).astimezone(place.zone)
    starts_at = day.replace(hour=random.randrange(9, 20), minute=random.choice((0, 30)), second=0, microsecond=0)
    return events.RequestedEvent(
        id=str(UUID(int=random.getrandbits(128), version=4)),
        starts_at=starts_at if random.random() < 0.9 else None,
        length_hours=hours + random.choice((-1, -0.5, 0, 0, 1.25)),
        guests=guests * random.randrange(5, 16) // 10 if random.random() < 0.9 else None,
        timezone=place.zone_name,
        type_key=kind,
        location=random.choice((*place.rooms, None)),
    )
