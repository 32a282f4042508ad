"""What happened in a run: what was published, what was answered, and what the nemesis did. Times are `time.monotonic`.

A *register* is a thing of which a reader can tell the state: a lead, a contact, an API key, the access of an
organization. Its history is a row of states; the first one, before anything was published, is None.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import NamedTuple

from msgspec import Struct, field

from projector.reference import Entity
from schemas import resources

now: Callable[[], float] = time.monotonic


BUSY = "machine-busy"
"""The name of a window in which the machine was too busy to judge."""
SOON_SECONDS = 0.5
"""Time in which two probes in a row are further apart than this is not counted: something else was slow."""


class Name(NamedTuple):
    """A register; or a contact as this lead shows it: it may be behind the contact's own document, but never goes back
    either.
    """

    register: Entity
    lead: Entity | None = None


class State(Struct):
    """A state of a register: what it shows (None if it is deleted), and when that was published."""

    value: str | None
    sent_at: float
    acked_at: float = inf


class Published(Struct):
    states: dict[Entity, list[State]] = field(default_factory=dict)

    def of(self, register: Entity) -> list[State]:
        """Returns its states, oldest first. The first one is None: nothing was published yet."""
        return self.states.setdefault(register, [State(None, -inf, -inf)])

    def add(self, register: Entity, value: str | None, at: float | None = None, acked_at: float = inf) -> State:
        """Note that a change is being published. `acked_at` is set when Kafka has it."""
        state = State(value, now() if at is None else at, acked_at)
        self.of(register).append(state)
        return state

    def acked(self, register: Entity, by: float) -> int:
        """Returns the last state that Kafka had at that time."""
        states = self.of(register)
        return max((index for index, state in enumerate(states) if state.acked_at <= by), default=0)


class Response(Struct, gc=False):
    """An answer of the API to a reader. `status` 0: there was none. What it shows is there for 200 and 304 only.

    `key` is the API key that was sent; its organization is the caller's. `shown` is the version of the document, as its
    text has it, and `contact_shown` that of the contact inside a lead; None if the lead shows none. `process` is the
    API process that answered. `as_of` is `Data-As-Of`: the answer says that it has every change that Kafka held at this
    time. `tag` is the ETag.

    `wait`: for so many seconds the request asked to wait (`Prefer`), until the record had another ETag than `other`, or
    was there if that is empty. `honoured` says whether it waited (`Preference-Applied`).
    """

    asked_at: float
    answered_at: float
    key: Entity
    wanted: Entity
    status: int
    organization_id: str = ""
    shown: str = ""
    contact_id: str = ""
    contact_shown: str | None = None
    body: bytes = b""
    process: int = 0
    as_of: float = -inf
    tag: str = ""
    wait: int = 0
    other: str = ""
    honoured: bool = False

    @property
    def organization(self) -> Entity:
        return resources.ORGANIZATION, self.key[1], self.key[1]

    @property
    def contact(self) -> Entity:
        return resources.CONTACT, self.wanted[1], self.contact_id


class Window(Struct):
    """A fault: when it began, when it ended, and when everything was applied and served again."""

    fault: str
    allows: frozenset[int]
    began_at: float
    healed_at: float = inf
    recovered_at: float = inf


class Loss(Struct):
    """Redis lost acknowledged writes in this time: afterwards it holds what it held at `back_to` (-inf: nothing).

    `dark`: from when to when 503 is the only right answer. `organizations`: those whose data was lost; None: all.
    `named`: `status` said in time that nobody knows what is right, so `Data-As-Of` may be wrong as well.
    """

    began_at: float
    ended_at: float
    back_to: float
    dark: tuple[float, float] = (inf, -inf)
    organizations: frozenset[str] | None = None
    named: bool = False

    @property
    def is_refilled(self) -> bool:
        """Does nobody get an answer until all that Kafka held is there again? Then nobody sees anything older."""
        return self.back_to == -inf and self.dark[0] < inf

    def affects(self, organization: str) -> bool:
        return self.organizations is None or organization in self.organizations


class Outage(Struct):
    """In this time, the shard with these organizations was not there or not complete: for them, 503 is right."""

    organizations: frozenset[str]
    began_at: float
    ended_at: float = inf


class CaughtUp(Struct):
    """At this time all that Kafka had by `up_to` had been applied."""

    up_to: float
    at: float


class Beat(Struct, frozen=True):
    """A probe was answered: `behind` is how many records are still to be applied, of those that Kafka had when the last
    fault ended. It is None if something was not there: Redis, Kafka, or the recent heartbeat of a projector.
    """

    at: float
    behind: int | None


class History(Struct):
    """A run."""

    published: Published = field(default_factory=Published)
    answers: list[Response] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    caught_up: list[CaughtUp] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)

    @contextmanager
    def losing(self, back_to: float = -inf, organizations: frozenset[str] | None = None) -> Iterator[Loss]:
        """In this block Redis loses what it acknowledged since `back_to`, of these organizations (None: of all). If all
        is lost, and what is left is dark until it is filled again, it holds at the end all that the topics held.
        """
        loss = Loss(now(), inf, back_to, organizations=organizations)
        yield loss
        loss.ended_at = now()
        self.losses.append(loss)
        if loss.is_refilled:
            self.caught_up.append(CaughtUp(loss.began_at, now()))

    def idle(self, begin: float, end: float) -> float:
        """Returns for how many seconds between these nothing happened although it could have: no fault was at work,
        every probe was answered soon, and no record of those to catch up with was applied.
        """
        idle, longest, lowest = 0.0, 0.0, inf
        for before, beat in pairwise(beat for beat in self.beats if begin <= beat.at <= end):
            if any(
                window.began_at <= beat.at and before.at <= window.healed_at
                for window in self.windows
                if window.fault != BUSY
            ):
                idle, lowest = 0.0, inf
            elif before.behind is not None and beat.behind is not None and beat.at - before.at <= SOON_SECONDS:
                idle = 0.0 if beat.behind < lowest else idle + beat.at - before.at
                lowest = min(lowest, beat.behind)
                longest = max(longest, idle)
        return longest

    def healthy(self, begin: float, end: float) -> bool:
        """Was no fault at work, nor anything still to be caught up with, at any time between these?"""
        return not any(window.began_at <= end and begin <= window.recovered_at for window in self.windows)

    def allows(self, status: int, answer: Response) -> bool:
        """Was a fault at work while this was asked under which such a status is right?"""
        is_outage = status == 503 and any(
            answer.key[1] in outage.organizations
            and outage.began_at <= answer.answered_at
            and answer.asked_at <= outage.ended_at
            for outage in self.outages
        )
        return is_outage or any(
            status in window.allows and window.began_at <= answer.answered_at and answer.asked_at <= window.recovered_at
            for window in self.windows
        )


class Floors:
    """How far each register is known to have come: what is shown later is not older. It can be asked for the past."""

    def __init__(self) -> None:
        self._rows: dict[Name, list[tuple[float, int]]] = {}

    def of(self, name: Name) -> int:
        row = self._rows.get(name)
        return row[-1][1] if row else 0

    def rows(self, name: Name) -> list[tuple[float, int]]:
        return [(round(at, 3), index) for at, index in self._rows.get(name, [])[-3:]]

    def raise_to(self, name: Name, index: int, at: float) -> None:
        if index > self.of(name):
            self._rows.setdefault(name, []).append((at, index))

    def back_to(self, loss: Loss) -> None:
        """Note that for the organizations of this loss, Redis is what it was at that time."""
        for name, row in self._rows.items():
            if loss.affects(name.register[1]):
                del row[bisect_left(row, (loss.back_to, -1)) :]
