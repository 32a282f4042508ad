"""The people in the sample data: names from many countries, with mail addresses and phone numbers that do not exist.

Mail addresses use the domains that RFC 2606 reserves. Phone numbers are from ranges that regulators keep for fiction:
Ofcom (UK), NANPA 555-01xx (US, Canada), Bundesnetzagentur (Germany), ARCEP (France), PTS (Sweden), ACMA (Australia).
"""

import unicodedata
from random import Random
from typing import NamedTuple

# A name as it is written, and in Latin letters (None if only accents differ).
_Name = tuple[str, str | None]


class Person(NamedTuple):
    first_name: str
    last_name: str
    email: str | None
    phone: str | None


def _plain(names: str) -> list[_Name]:
    return [(name, None) for name in names.split(", ")]


def _pairs(names: str) -> list[_Name]:
    return [(native, latin) for native, latin in (name.split("/") for name in names.split(", "))]


_PLACES: list[tuple[list[_Name], list[_Name]]] = [
    (_plain("Amelia, Oliver, Siobhán, Rhys, Zoë"), _plain("Whitfield, O’Connor, Llewellyn, MacLeod, Smith-Jones")),  # noqa: RUF001 - so it is written
    (_plain("Madison, Tyrone, Caitlin, DeShawn, Joe"), _plain("Washington, Kowalski, Begay, Nguyen, St. James")),
    (_plain("Jürgen, Anneliese, Björn, Käthe, Lukas"), _plain("Müller, von der Heyde, Weiß, Schröder, Özdemir")),
    (_plain("Chloé, François, Maëlys, Théo, Anaïs"), _plain("Lefèvre, d’Aubigné, Benoît, Dupont, N’Diaye")),  # noqa: RUF001 - so it is written
    (_plain("María José, Íñigo, Begoña, Andrés, Lucía"), _plain("García Márquez, Núñez, Ibáñez, Peña, Ortiz")),
    (_plain("João, Conceição, Thaís, Caetano, Inês"), _plain("Gonçalves, da Silva, Magalhães, Araújo, Simões")),
    (_plain("Søren, Åsa, Jørgen, Ingrid, Þórdís"), _plain("Østergård, Ångström, Sæther, Björnsdóttir, Lund")),
    (_plain("Łukasz, Małgorzata, Zdeněk, Žofie, Stanisław"), _plain("Wójcik, Dvořák, Świątek, Nováková, Żak")),
    (_plain("Chiamaka, Oluwaseun, Kwabena, Naledi, Tendai"), _plain("Okonkwo, Adébáyò, Mensah, Dlamini, Moyo")),
    (_plain("Nguyễn, Thị Hương, Đức, Quỳnh Anh, Minh"), _plain("Trần, Phạm, Đặng, Hoàng, Vũ")),
    (_plain("Kealoha, Tāne, Siaosi, Moana, Hōkū"), _plain("Kāneʻālai, Tūhoe, Fifita, Leilua, Ngata")),  # noqa: RUF001 - so it is written
    (_plain("Priya, Arjun, Lakshmi, Imran, Suresh"), _plain("Iyer, Chatterjee, Krishnamurthy, Patel, Khan")),
    (
        _pairs("Дмитро/dmytro, Олена/olena, Наталія/nataliia, Іван/ivan"),
        _pairs("Шевченко/shevchenko, Ковальчук/kovalchuk, Гриценко/hrytsenko"),
    ),
    (
        _pairs("Ελένη/eleni, Γιώργος/giorgos, Αικατερίνη/aikaterini"),
        _pairs("Παπαδοπούλου/papadopoulou, Καραγιάννης/karagiannis"),
    ),
    (
        _pairs("محمد/mohammed, فاطمة/fatima, ليلى/layla, يوسف/youssef"),
        _pairs("الحسيني/alhusseini, بن علي/benali, خوري/khoury"),
    ),
    (_pairs("נועה/noa, איתן/eitan, תמר/tamar"), _pairs("כהן/cohen, בן-דוד/bendavid, מזרחי/mizrahi")),
    (_pairs("美咲/misaki, 陽翔/haruto, 結衣/yui, さくら/sakura"), _pairs("佐藤/sato, 髙橋/takahashi, 渡邉/watanabe")),
    (_pairs("秀英/xiuying, 伟/wei, 子涵/zihan"), _pairs("王/wang, 欧阳/ouyang, 李/li, 𠮷田/yoshida")),
    (_pairs("서연/seoyeon, 민준/minjun, 하은/haeun"), _pairs("김/kim, 박/park, 최/choi")),
    (_pairs("अनन्या/ananya, राहुल/rahul, दीपिका/deepika"), _pairs("शर्मा/sharma, त्रिवेदी/trivedi, चौहान/chauhan")),
    (_pairs("ธนพร/thanaporn, สมชาย/somchai"), _pairs("ศรีสุวรรณ/srisuwan, วงศ์ไทย/wongthai")),
    (_pairs("ნინო/nino, გიორგი/giorgi, თამარ/tamar"), _pairs("ბერიძე/beridze, კაპანაძე/kapanadze")),
    (_pairs("ሰላም/selam, ዮሐንስ/yohannes"), _pairs("ተስፋዬ/tesfaye, ገብረመድህን/gebremedhin")),
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
    written, latin = name
    plain = unicodedata.normalize("NFKD", (latin or written).lower().translate(_LETTERS))
    return "".join(letter for letter in plain if letter.isascii() and letter.isalnum())
