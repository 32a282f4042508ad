"""Generations in tests: by the number that people use, with a tag that no program would make."""

import re
from collections.abc import Iterable
from typing import Any

from schemas import names
from schemas.control import GenerationId, in_order, number_of, parse_generations

_TAG = "Test00"


def generation(number: int) -> GenerationId:
    """Returns the identity that tests give to the generation with this number."""
    return GenerationId(f"{number}.{_TAG}")


def ids(*numbers: int) -> tuple[GenerationId, ...]:
    return tuple(map(generation, numbers))


def numbers(generations: Iterable[GenerationId]) -> list[int]:
    """Returns the numbers of generations, whatever their tags, in order."""
    return [number_of(each) for each in in_order(generations)]


def stored(client: Any, number: int) -> GenerationId:
    """Returns the identity of the generation with this number, as the control record in Redis has it; that of tests if
    there is none."""
    known = parse_generations(client.hget(names.CONTROL, "known"))
    return next((each for each in known if number_of(each) == number), generation(number))


def any_tag(name: bytes) -> re.Pattern[bytes]:
    """Returns what matches this name of a test's generation, and the same name with the tag that a program has made."""
    return re.compile(re.escape(name).replace(_TAG.encode(), b"[0-9A-Za-z]{6}"))


def pattern(number: int) -> bytes:
    """Returns the pattern of all names in generations with this number, for SCAN."""
    return names.of_generation(generation(number)).replace(_TAG.encode(), b"?" * len(_TAG))
