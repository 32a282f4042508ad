"""What the page says about an entity, a record or a key, in words. Plain text: the page never reads it as HTML."""

from typing import Any, Literal

import msgspec

State = Literal["well", "wrong", "waits", "plain"]
"""How it is meant: as it should be, refused or bad, under way, or neither."""


class Fact(msgspec.Struct, frozen=True):
    """A line of a table."""

    name: str
    value: str


class Event(msgspec.Struct, frozen=True):
    """A record in Kafka, and what became of it. `time` is RFC 3339."""

    record: str
    version: int | None
    time: str
    outcome: str
    state: State


class Answer(msgspec.Struct, frozen=True):
    """About one thing. `verdict` says in a sentence what happened to it, `page` is a page in `docs` that says more.

    `events` are the records of it in Kafka, the newest first, as far as they were looked for. `document` is None also
    if documents are not to be shown.
    """

    title: str
    verdict: str
    state: State = "plain"
    page: str = ""
    facts: list[Fact] = []
    events: list[Event] = []
    note: str = ""
    document: Any = None
