"""What is made up for the sample data: inquiries, and people whose mail addresses and phone numbers do not exist.

Mail addresses use the domains that RFC 2606 reserves. Phone numbers are from ranges that regulators keep for fiction:
Ofcom (UK), NANPA 555-01xx (US, Canada), Bundesnetzagentur (Germany), ARCEP (France), PTS (Sweden), ACMA (Australia).
"""

import unicodedata
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


def uuid(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128), version=4))


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
        id=uuid(random),
        starts_at=starts_at if random.random() < 0.9 else None,
        length_hours=hours + random.choice((-1, -0.5, 0, 0, 1.25)),
        guests=guests * random.randrange(5, 16) // 10 if random.random() < 0.9 else None,
        timezone=place.zone_name,
        type_key=kind,
        location=random.choice((*place.rooms, None)),
    )


_Name = tuple[str, str]
"""A name as it is written, and in Latin letters."""


class Person(NamedTuple):
    first_name: str
    last_name: str
    email: str | None
    phone: str | None


def _names(names: str) -> list[_Name]:
    """Reads `José, さくら/sakura`. Where only accents differ, there is no second form."""
    return [(native, latin or native) for native, _, latin in (name.partition("/") for name in names.split(", "))]


_PLACES: list[tuple[list[_Name], list[_Name]]] = [
    (_names("Amelia, Oliver, Siobhán, Rhys, Zoë"), _names("Whitfield, O’Connor, Llewellyn, MacLeod, Smith-Jones")),  # noqa: RUF001 - so it is written
    (_names("Madison, Tyrone, Caitlin, DeShawn, Joe"), _names("Washington, Kowalski, Begay, Nguyen, St. James")),
    (_names("Jürgen, Anneliese, Björn, Käthe, Lukas"), _names("Müller, von der Heyde, Weiß, Schröder, Özdemir")),
    (_names("Chloé, François, Maëlys, Théo, Anaïs"), _names("Lefèvre, d’Aubigné, Benoît, Dupont, N’Diaye")),  # noqa: RUF001 - so it is written
    (_names("María José, Íñigo, Begoña, Andrés, Lucía"), _names("García Márquez, Núñez, Ibáñez, Peña, Ortiz")),
    (_names("João, Conceição, Thaís, Caetano, Inês"), _names("Gonçalves, da Silva, Magalhães, Araújo, Simões")),
    (_names("Søren, Åsa, Jørgen, Ingrid, Þórdís"), _names("Østergård, Ångström, Sæther, Björnsdóttir, Lund")),
    (_names("Łukasz, Małgorzata, Zdeněk, Žofie, Stanisław"), _names("Wójcik, Dvořák, Świątek, Nováková, Żak")),
    (_names("Chiamaka, Oluwaseun, Kwabena, Naledi, Tendai"), _names("Okonkwo, Adébáyò, Mensah, Dlamini, Moyo")),
    (_names("Nguyễn, Thị Hương, Đức, Quỳnh Anh, Minh"), _names("Trần, Phạm, Đặng, Hoàng, Vũ")),
    (_names("Kealoha, Tāne, Siaosi, Moana, Hōkū"), _names("Kāneʻālai, Tūhoe, Fifita, Leilua, Ngata")),  # noqa: RUF001 - so it is written
    (_names("Priya, Arjun, Lakshmi, Imran, Suresh"), _names("Iyer, Chatterjee, Krishnamurthy, Patel, Khan")),
    (
        _names("Дмитро/dmytro, Олена/olena, Наталія/nataliia, Іван/ivan"),
        _names("Шевченко/shevchenko, Ковальчук/kovalchuk, Гриценко/hrytsenko"),
    ),
    (
        _names("Ελένη/eleni, Γιώργος/giorgos, Αικατερίνη/aikaterini"),
        _names("Παπαδοπούλου/papadopoulou, Καραγιάννης/karagiannis"),
    ),
    (
        _names("محمد/mohammed, فاطمة/fatima, ليلى/layla, يوسف/youssef"),
        _names("الحسيني/alhusseini, بن علي/benali, خوري/khoury"),
    ),
    (_names("נועה/noa, איתן/eitan, תמר/tamar"), _names("כהן/cohen, בן-דוד/bendavid, מזרחי/mizrahi")),
    (_names("美咲/misaki, 陽翔/haruto, 結衣/yui, さくら/sakura"), _names("佐藤/sato, 髙橋/takahashi, 渡邉/watanabe")),
    (_names("秀英/xiuying, 伟/wei, 子涵/zihan"), _names("王/wang, 欧阳/ouyang, 李/li, 𠮷田/yoshida")),
    (_names("서연/seoyeon, 민준/minjun, 하은/haeun"), _names("김/kim, 박/park, 최/choi")),
    (_names("अनन्या/ananya, राहुल/rahul, दीपिका/deepika"), _names("शर्मा/sharma, त्रिवेदी/trivedi, चौहान/chauhan")),
    (_names("ธนพร/thanaporn, สมชาย/somchai"), _names("ศรีสุวรรณ/srisuwan, วงศ์ไทย/wongthai")),
    (_names("ნინო/nino, გიორგი/giorgi, თამარ/tamar"), _names("ბერიძე/beridze, კაპანაძე/kapanadze")),
    (_names("ሰላም/selam, ዮሐንስ/yohannes"), _names("ተስፋዬ/tesfaye, ገብረመድህን/gebremedhin")),
]

_DOMAINS = ("example.com", "example.org", "example.net")
# `#` is replaced by a random digit.
_PHONES = (
    "+44 20 7946 0###",
    "+44 7700 900###",
    "+1 212 555 01##",
    "+1 416 555 01##",
    "+49 30 23125 ###",
    "+33 1 99 00 ## ##",
    "+46 8 465 004 ##",
    "+61 2 5550 ####",
)
# Unicode normalization does not decompose these letters.
_LETTERS = str.maketrans({"ø": "o", "æ": "ae", "ß": "ss", "ł": "l", "đ": "d", "þ": "th", "ð": "d"})


def person(random: Random) -> Person:
    """Returns a new person, sometimes without a mail address, a phone number or both."""
    first, last = (random.choice(names) for names in random.choice(_PLACES))
    email = _email(random, first, last) if random.random() < 0.9 else None
    return Person(first[0], last[0], email, phone(random) if random.random() < 0.8 else None)


def phone(random: Random) -> str:
    """Returns a phone number that nobody has, with or without spaces."""
    number = "".join(str(random.randrange(10)) if sign == "#" else sign for sign in random.choice(_PHONES))
    return number if random.random() < 0.7 else number.replace(" ", "")


def _email(random: Random, first: _Name, last: _Name) -> str:
    number = random.randrange(1000) if random.random() < 0.3 else ""
    return f"{_latin(first)}.{_latin(last)}{number}@{random.choice(_DOMAINS)}"


def _latin(name: _Name) -> str:
    plain = unicodedata.normalize("NFKD", name[1].lower().translate(_LETTERS))
    return "".join(letter for letter in plain if letter.isascii() and letter.isalnum())
