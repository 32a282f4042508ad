"""Checks a run: was every answer right when it was given?

An answer that ended before another began was not newer, also if another reader asked, or another process answered: all
readers and all processes together are one history. Each register has a *floor*, a state that an answer may no longer
fall behind. It rises with every answer, and with every moment at which all that was published had been applied; it
sinks where Redis lost acknowledged writes.

During a loss, an answer may show what was there before it or what is left after it, so the lower of both floors
holds. If Redis (or a shard) was emptied, no floor sinks: everybody gets 503 until all that Kafka held is there again.

No 503 may last for ever. It may last while a fault is at work, and while projectors catch up with what Kafka held
when the last fault ended. It is wrong after `STUCK_SECONDS` in which Redis and Kafka answered each probe at once, a
projector stored heartbeats, and no record of those was applied.

What Kafka had acknowledged at the moment that an answer names (`Data-As-Of`) is in this answer: of the record, of its
contact, of the key and of its organization. This moment is not in the future. Only while `status` names a break, nobody
knows what Kafka held: then an answer may show whatever was published, also if everything was applied meanwhile.

An answer for which a request has waited (`Prefer`) tells something new, or comes when the time is over, not earlier and
not later. A key or an access that ended meanwhile has ended the wait within a second of Kafka's acknowledgement.

An answer is placed at the earliest state that it fits: so nothing is called wrong that could be right.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from itertools import groupby
from math import inf

from msgspec import Struct, field

from projector.reference import Entity
from schemas import resources
from tests.chaos.history import CaughtUp, Floors, History, Loss, Name, Response, State

SHOWN = (200, 304)
REFUSED = 401
REMEMBERED_SECONDS = 0.5
"""For so long an API process may refuse a key again without asking Redis: what was applied or answered by another
process meanwhile, it need not know."""

STUCK_SECONDS = 30.0
"""More than all times together after which a program gives up waiting for another: Kafka's session timeout and the
rebalance after it, the acknowledgement of writers, heartbeats, and the API's question what is served."""

_CLOCK_SECONDS = 0.05
"""For so long at most, a reader is interrupted while it compares two clocks."""

_OF_ACCESS = (resources.API_KEY, resources.ORGANIZATION)


class Anomaly(Struct, frozen=True):
    """What is wrong, and with which answer. `kind` names the law that is broken."""

    kind: str
    what: str
    answer: Response
    near: str = ""
    """The faults that were active then."""

    def __str__(self) -> str:
        answer = self.answer
        kind, organization, id_ = answer.wanted
        shown = f" {answer.shown} with contact {answer.contact_shown}" if answer.status in SHOWN else ""
        asked = f"{kind.topic} {organization[-2:]} {id_[-4:]} with key {answer.key[2][-2:]}"
        return f"{self.kind}: {asked} at {answer.asked_at:.3f}: {answer.status}{shown}: {self.what} [{self.near}]"


class Verdict(Struct):
    """`checked` counts answers by status, and `dated` those with `Data-As-Of`. `latest` is the longest that a change of
    access took, and `longest` the longest that 503 lasted although nothing hindered the projectors and nothing was
    applied, in seconds."""

    anomalies: list[Anomaly] = field(default_factory=list)
    checked: Counter[int] = field(default_factory=Counter)
    dated: int = 0
    latest: float = 0.0
    longest: float = 0.0


class _Order(IntEnum):
    """What comes first if times are equal: an answer that has ended counts before the next request."""

    ANSWERED, CAUGHT_UP, LOST, REFUSED_BEFORE, ASKED = range(5)


class Checker:
    """`bodies` says what a document may look like: of its register, its version, and its contact's version."""

    def __init__(
        self,
        history: History,
        bodies: Callable[[Entity, str, str | None], Collection[bytes]] | None = None,
        access_seconds: float = 1.0,
    ) -> None:
        self._history = history
        self._published = history.published
        self._bodies = bodies
        self._access_seconds = access_seconds
        self._seen = Floors()
        self._applied = Floors()
        # Of access only: what a process has said about a key, it does not forget.
        self._said: defaultdict[int, Floors] = defaultdict(Floors)
        self._asked: dict[int, dict[Name, int]] = {}
        # The floors when Redis may have been asked for a refused key.
        self._known: dict[int, dict[Name, int]] = {}
        self._replays: dict[str, list[tuple[float, float]]] = {}
        self._tags: dict[tuple[Entity, bytes], str] = {}
        self._verdict = Verdict()

    def check(self) -> Verdict:
        organizations = [org for kind, org, _ in self._published.states if kind is resources.ORGANIZATION]
        self._replays = {organization: list(self._re_creations(organization)) for organization in organizations}
        named = [loss for loss in self._history.losses if loss.named]
        for _, order, thing in sorted(self._timeline(), key=lambda entry: entry[:2]):
            match thing:
                case Loss():
                    self._lose(thing)
                case CaughtUp() if not any(lost.began_at <= thing.at <= lost.ended_at for lost in named):
                    for register in self._published.states:
                        self._applied.raise_to(Name(register), self._published.acked(register, thing.up_to), thing.at)
                case CaughtUp():
                    pass  # what was applied may come back
                case Response() if order is _Order.REFUSED_BEFORE:
                    self._known[id(thing)] = {name: self._floor(name) for name in _tells(thing)}
                case Response() if order is _Order.ASKED:
                    self._ask(thing)
                case Response():
                    self._check(thing, self._asked.pop(id(thing)))
        self._check_ends()
        return self._verdict

    def _timeline(self) -> Iterator[tuple[float, _Order, Response | CaughtUp | Loss]]:
        for answer in self._history.answers:
            if answer.status == REFUSED:
                yield answer.asked_at - REMEMBERED_SECONDS, _Order.REFUSED_BEFORE, answer
            yield answer.asked_at, _Order.ASKED, answer
            yield answer.answered_at, _Order.ANSWERED, answer
        for caught_up in self._history.caught_up:
            yield caught_up.at, _Order.CAUGHT_UP, caught_up
        for loss in self._history.losses:
            yield loss.began_at, _Order.LOST, loss

    def _re_creations(self, organization: str) -> Iterator[tuple[float, float]]:
        """From each delete of one until everything of it had been replayed: 503 is right then."""
        states = self._published.of((resources.ORGANIZATION, organization, organization))
        for index, state in enumerate(states):
            if index and state.value is None:
                back = states[index + 1].acked_at if index + 1 < len(states) else inf
                ends = (caught_up.at for caught_up in self._history.caught_up if caught_up.up_to >= back)
                yield state.sent_at, min(ends, default=inf)

    def _lose(self, loss: Loss) -> None:
        """Let floors sink, also those of the questions that were not answered yet."""
        if loss.is_refilled:
            return
        for floors in (self._seen, self._applied, *self._said.values()):
            floors.back_to(loss)
        for known in (*self._asked.values(), *self._known.values()):
            for name in known:
                if loss.affects(name.register[1]):
                    known[name] = min(known[name], self._floor(name))

    def _ask(self, answer: Response) -> None:
        floors = {name: self._floor(name) for name in _tells(answer)}
        for name, before in self._known.pop(id(answer), {}).items():
            floors[name] = min(floors[name], max(before, self._said[answer.process].of(name)))
        self._asked[id(answer)] = floors

    def _floor(self, name: Name) -> int:
        return max(self._seen.of(name), self._applied.of(Name(name.register)))

    def _raise(self, name: Name, state: int, answer: Response) -> None:
        if all(loss.is_refilled for loss in self._losses_during(answer)) and not self._may_predate_a_loss(answer):
            self._seen.raise_to(name, state, answer.answered_at)
            if name.register[0] in _OF_ACCESS:
                self._said[answer.process].raise_to(name, state, answer.answered_at)

    def _check(self, answer: Response, floors: dict[Name, int]) -> None:
        self._verdict.checked[answer.status] += 1
        if answer.status in SHOWN:
            self._check_content(answer)
        if answer.status in (0, 503):
            is_replayed = answer.status == 503 and any(
                began <= answer.answered_at and answer.asked_at <= ended
                for began, ended in self._replays.get(answer.key[1], ())
            )
            if not is_replayed and not self._history.allows(answer.status, answer):
                self._wrong("unavailable", "no fault explains it", answer)
        elif answer.status not in (*SHOWN, REFUSED, 403, 404):
            if not self._history.allows(answer.status, answer):
                self._wrong("status", f"{answer.status} is never right here", answer)
        elif any(self._is_dark(answer, lost) for lost in self._losses_during(answer)):
            self._wrong("emptied", f"{answer.status} while Redis was being filled again", answer)
        else:
            self._check_registers(answer, floors)
            if answer.wait:
                self._check_wait(answer)

    def _check_wait(self, answer: Response) -> None:
        seconds = answer.answered_at - answer.asked_at
        if answer.status == 200 and answer.tag == answer.other:
            self._wrong("wait", "it has ended with what it waited to change", answer)
        elif (
            answer.honoured
            and answer.status == (304 if answer.other else 404)
            and seconds < answer.wait - _CLOCK_SECONDS
            and self._history.healthy(answer.asked_at, answer.answered_at)  # a worker that stops ends all waits
        ):
            self._wrong("wait", f"it has ended after {seconds:.2f} s, and nothing had changed", answer)
        elif seconds > answer.wait + self._access_seconds and self._history.healthy(
            answer.asked_at, answer.answered_at
        ):
            self._wrong("wait", f"it has lasted for {seconds:.2f} s", answer)
        elif answer.status in (REFUSED, 403):
            self._check_end_of_wait(answer)

    def _check_end_of_wait(self, answer: Response) -> None:
        """Check how long a request waited with a key that was not served any more."""
        rows = (("active", self._published.of(answer.key)), ("on", self._published.of(answer.organization)))
        changes = [
            state.acked_at
            for serves, states in rows
            for state in states
            if state.sent_at <= answer.answered_at and state.value != serves
        ]
        changed_at = max(changes, default=inf)
        delay = answer.answered_at - max(changed_at, answer.asked_at)
        if delay > self._access_seconds and self._history.healthy(changed_at, answer.answered_at):
            self._wrong("late", f"access was changed {delay:.2f} s before", answer)

    def _is_dark(self, answer: Response, lost: Loss) -> bool:
        remembered = REMEMBERED_SECONDS if self._is_remembered(answer, lost) else 0.0
        return lost.dark[0] + remembered < answer.asked_at and answer.answered_at < lost.dark[1]

    def _check_ends(self) -> None:
        """Check that 503 ended, for each organization and at each process."""
        rows: defaultdict[tuple[str, int], list[Response]] = defaultdict(list)
        for answer in sorted(self._history.answers, key=lambda answer: answer.asked_at):
            rows[answer.key[1], answer.process].append(answer)
        for row in rows.values():
            for unavailable, group in groupby(row, lambda answer: answer.status in (0, 503)):
                answers = list(group)
                if unavailable:
                    idle = self._history.idle(answers[0].asked_at, answers[-1].answered_at)
                    self._verdict.longest = max(self._verdict.longest, idle)
                    if idle > STUCK_SECONDS:
                        self._wrong("stuck", f"for {idle:.1f} s nothing hindered and nothing happened", answers[-1])

    def _is_remembered(self, answer: Response, lost: Loss) -> bool:
        """Returns whether this may be a refusal from before Redis lost the key: it was not active then, or its
        organization was deleted.
        """
        since = lost.began_at - REMEMBERED_SECONDS - self._access_seconds
        return answer.status == REFUSED and (
            self._was(answer.key, lambda value: value != "active", since, lost.began_at)
            or self._was(answer.organization, lambda value: value is None, since, lost.began_at)
        )

    def _was(self, register: Entity, fits: Callable[[str | None], bool], since: float, until: float) -> bool:
        states = self._published.of(register)
        ends = [*(state.acked_at for state in states[1:]), inf]
        return any(
            fits(state.value) and state.sent_at <= until and end >= since
            for state, end in zip(states, ends, strict=True)
        )

    def _may_predate_a_loss(self, answer: Response) -> bool:
        """Returns whether this may be a refusal from memory, because of a state that Redis has lost since then."""
        return answer.status == REFUSED and any(
            loss.affects(answer.key[1]) and loss.ended_at < answer.asked_at <= loss.ended_at + REMEMBERED_SECONDS
            for loss in self._history.losses
        )

    def _losses_during(self, answer: Response) -> list[Loss]:
        losses = (loss for loss in self._history.losses if loss.began_at <= answer.answered_at)
        return [loss for loss in losses if answer.asked_at <= loss.ended_at and loss.affects(answer.key[1])]

    def _check_content(self, answer: Response) -> None:
        if answer.organization_id != answer.key[1]:
            self._wrong("isolation", f"a document of {answer.organization_id}", answer)
        elif self._bodies and answer.body not in self._bodies(answer.wanted, answer.shown, answer.contact_shown):
            self._wrong("content", "no such document was ever published", answer)
        elif self._tags.setdefault((answer.wanted, answer.body), answer.tag) != answer.tag:
            self._wrong("etag", "the same document has had another ETag", answer)

    def _check_registers(self, answer: Response, floors: dict[Name, int]) -> None:
        organization = Name(answer.organization)
        if answer.status == REFUSED:
            self._check_refusal(answer, floors)
            return
        self._place(answer, Name(answer.key), lambda value: value == "active", floors)
        if answer.status == 403:
            self._place(answer, organization, lambda value: value != "on", floors)
            return
        self._place(answer, organization, lambda value: value == "on", floors)
        if answer.as_of > answer.answered_at + _CLOCK_SECONDS:
            self._wrong("future", f"Data-As-Of is {answer.as_of - answer.answered_at:.3f} s ahead", answer)
        self._check_as_of(answer, answer.key, "active")
        self._check_as_of(answer, answer.organization, "on")
        shown = answer.shown if answer.status in SHOWN else None
        self._place(answer, Name(answer.wanted), lambda value: value == shown, floors)
        self._check_as_of(answer, answer.wanted, shown)
        self._verdict.dated += answer.as_of > -inf
        if answer.contact_id:
            name = Name(answer.contact, answer.wanted)
            found = self._place(answer, name, lambda value: value == answer.contact_shown, floors)
            self._check_as_of(answer, answer.contact, answer.contact_shown)
            if found is not None and answer.contact_shown is not None:  # its own document was written before
                self._raise(Name(answer.contact), found, answer)

    def _check_as_of(self, answer: Response, register: Entity, shown: str | None) -> None:
        """Check that the answer has each change that Kafka held at its `Data-As-Of`, also after a loss, unless `status`
        said meanwhile that nobody knows.
        """
        if any(loss.named for loss in self._losses_during(answer)):
            return
        newest = self._published.acked(register, answer.as_of)
        if newest and not self._fitting(answer, register, lambda value: value == shown, newest):
            state = self._published.of(register)[newest]
            held = f"Kafka held {state.value!r} at {state.acked_at:.3f}, before {answer.as_of:.3f}"
            self._wrong("as of", f"{register[0].noun} {register[2]}: shows {shown!r}, and {held}", answer)

    def _check_refusal(self, answer: Response, floors: dict[Name, int]) -> None:
        """Check a 401: the key is not active, or its organization is deleted. If both are possible, nothing follows."""
        key, organization = Name(answer.key), Name(answer.organization)
        if not self._fitting(answer, organization.register, lambda value: value is None, floors[organization]):
            self._place(answer, key, lambda value: value != "active", floors)
        elif not self._fitting(answer, key.register, lambda value: value != "active", floors[key]):
            self._place(answer, organization, lambda value: value is None, floors)

    def _fitting(self, answer: Response, register: Entity, fits: Callable[[str | None], bool], floor: int) -> list[int]:
        states = enumerate(self._published.of(register))
        return [
            index
            for index, state in states
            if index >= floor and state.sent_at <= answer.answered_at and fits(state.value)
        ]

    def _place(
        self, answer: Response, name: Name, fits: Callable[[str | None], bool], floors: dict[Name, int]
    ) -> int | None:
        """The earliest state that this answer may have shown, which is the floor from now on."""
        register, floor = name.register, floors[name]
        states, sent = self._published.of(register), self._fitting(answer, register, fits, 0)
        found = next((index for index in sent if index >= floor), None)
        if found is None:
            seen, applied = self._seen.rows(name), self._applied.rows(Name(register))
            known = f"floor {floor} {states[floor].value!r} (sent {states[floor].sent_at:.3f}, {seen=}, {applied=})"
            what = f"{register[0].noun} {register[2]}: {known}, fitting {sent[-3:]}"
            self._wrong(_kind(states, sent, floor, register), what, answer)
            return None
        self._raise(name, found, answer)
        if register[0] in _OF_ACCESS:
            self._check_delay(answer, states, sent[-1])
        return found

    def _check_delay(self, answer: Response, states: list[State], shown: int) -> None:
        """Check for how long the former access was still served after a change."""
        if shown + 1 == len(states):
            return
        changed_at = states[shown + 1].acked_at
        served_at = answer.answered_at if answer.wait and answer.status != REFUSED else answer.asked_at
        if changed_at < served_at and self._history.healthy(changed_at, served_at):
            delay = served_at - changed_at - (REMEMBERED_SECONDS if answer.status == REFUSED else 0.0)
            self._verdict.latest = max(self._verdict.latest, delay)
            if delay > self._access_seconds:
                self._wrong("late", f"access was changed {delay:.2f} s before", answer)

    def _wrong(self, kind: str, what: str, answer: Response) -> None:
        near = ", ".join(
            f"{window.fault} {window.began_at:.3f} {window.healed_at:.3f} {window.recovered_at:.3f}"
            for window in self._history.windows
            if window.began_at <= answer.answered_at and answer.asked_at <= window.recovered_at + 1
        )
        self._verdict.anomalies.append(Anomaly(kind, what, answer, near))


def _kind(states: list[State], sent: list[int], floor: int, register: Entity) -> str:
    """Returns a word for what is wrong with an answer that fits none of the states that are still possible."""
    if register[0] in _OF_ACCESS:
        return "access"
    if not sent:
        return "invented"
    if states[sent[-1]].value is None:
        return "lost"
    return "resurrected" if states[floor].value is None else "went back"


def _tells(answer: Response) -> list[Name]:
    """Returns what an answer shows something of."""
    own = [Name(answer.key), Name(answer.organization), Name(answer.wanted)]
    return [*own, Name(answer.contact, answer.wanted)] if answer.contact_id else own
