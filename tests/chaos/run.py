"""A chaos run from its beginning to its verdict."""

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from itertools import product
from math import inf
from random import Random
from subprocess import TimeoutExpired

import orjson
from msgspec import Struct, field

from devstack.threads import Repeating
from schemas import names, resources
from tests.chaos import nemesis
from tests.chaos.checker import REFUSED, Verdict
from tests.chaos.core import KEY_IDS, ORGANIZATIONS, Core, Writer, key_text
from tests.chaos.history import now
from tests.chaos.nemesis import Fault, Operator
from tests.chaos.reader import Probe, Pulse, Reader, check
from tests.chaos.world import World
from tests.harness import stored
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import numbers
from tests.harness.waiting import wait_for, wait_until

_CHANGES, _READERS, _QUESTIONS = 150, 3, 40
"""Changes a second, readers, and questions a second of each of these."""
_WAITS = (1, 3)
"""For each further reader, the seconds for which all of its requests wait for a change."""
_BUSY_SHARE = 0.3
_ANSWER_SECONDS = 20.0


class Report(Struct):
    """What was done, and what was found. `recoveries` has how long the recovery from each fault took, after it had
    ended, each time. `final` says what is wrong with what Redis holds in the end. `busy` are the seconds in which the
    machine was too busy to judge whether the API was there. `told` is the longest after which `status` named a break.
    `unfinished` says why the run could not be finished; what
    had happened by then was checked.
    """

    seed: int
    seconds: float
    published: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    final: list[str] = field(default_factory=list)
    documents: int = 0
    busy: float = 0.0
    told: float = 0.0
    unfinished: str = ""

    @property
    def status(self) -> int:
        """Returns 0 if all was right, 1 if something was wrong, and 2 if nothing was but the run was not finished."""
        return 1 if self.verdict.anomalies or self.final else 2 if self.unfinished else 0

    def __str__(self) -> str:
        checked = ", ".join(
            f"{count} x {status or 'no answer'}" for status, count in sorted(self.verdict.checked.items())
        )
        wrong = len(self.verdict.anomalies) + len(self.final)
        verdicts = ("all is right", f"{wrong} anomalies", "not finished, and nothing wrong until then")
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {self.published} changes published; answers checked: {checked}",
            f"{self.verdict.dated} of them say what they contain (Data-As-Of)",
            *(
                f"  {name:<20} x {len(took):<3} recovered within {max(took):.1f} s"
                for name, took in sorted(self.recoveries.items())
            ),
            f"  operator: {', '.join(f'{name} x {count}' for name, count in sorted(self.operations.items()))}",
            f"  a change of access was seen within {self.verdict.latest:.2f} s while all was well",
            *[f"  status named what is wrong within {self.told:.1f} s"] * (self.told > 0),
            *[f"  the machine was too busy to be judged for {self.busy:.1f} s"] * (self.busy > 0),
            f"  503 lasted {self.verdict.longest:.1f} s at most while nothing hindered and nothing was applied",
            f"  in the end {self.documents} documents, dead letters and access compared with the reference",
            *(f"WRONG {anomaly}" for anomaly in self.verdict.anomalies[:20]),
            *(f"WRONG in the end: {what}" for what in self.final),
            *[f"NOT FINISHED: {self.unfinished}"] * bool(self.unfinished),
            verdicts[self.status],
        ]
        return "\n".join(lines)


def run(
    world: World,
    seed: int,
    seconds: float,
    faults: Sequence[Fault],
    *,
    pace: float = 1.0,
    pairs: float = 0.0,
    access_seconds: float = 1.0,
    hostile_bytes: int = 0,
) -> Report:
    """Start everything, let the nemesis work for `seconds`, then compare all.

    Returns a report in every case: also if Leadview does not recover, or if something that this run needs fails.
    """
    report, began_at = Report(seed, 0.0), now()
    core = Core(seed, hostile_bytes=hostile_bytes)
    world.writer = writer = Writer(world, core, _CHANGES, seed, rests=True)
    readers = []
    for number, wait in enumerate([*[0] * _READERS, *_WAITS]):
        connections = [HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS) for port in world.ports]
        readers.append(Reader(connections, core, seed + number, _QUESTIONS, wait))
    pulse, probe = Pulse(), Probe(world)
    threads: list[Repeating] = [pulse, probe, writer, Operator(world, seed), *readers]
    with judging(report):
        world.start()
        writer.publish(core.first())
        world.catch_up()
        for thread in threads:
            thread.start()
        nemesis.run(world, faults, seconds, Random(seed), pace=pace, pairs=pairs)
    for thread in threads:
        if thread.ident:
            with judging(report):
                thread.stop()
    if not report.final and not report.unfinished:
        with judging(report):
            world.catch_up()
            report.final += _final(world)
    report.final += world.wrong
    report.told = world.told_after
    report.seconds, report.published, report.operations = now() - began_at, writer.number, world.done
    report.documents = len(world.leadview.expected())
    history = world.history
    history.beats += probe.beats
    for window in history.windows:
        took = window.recovered_at - window.healed_at if window.recovered_at < inf else 0.0
        report.recoveries.setdefault(window.fault, []).append(took)
    history.windows += pulse.windows
    report.busy = sum(window.healed_at - window.began_at for window in pulse.windows)
    if report.busy > _BUSY_SHARE * report.seconds and not report.unfinished:
        report.unfinished = "the machine was too busy for most answers to be judged"
    report.verdict = check(writer, readers, access_seconds)
    return report


@contextmanager
def judging(report: Report) -> Iterator[None]:
    """Note in the report what the block raises: what took too long is wrong, other errors end the run unfinished."""
    try:
        yield
    except (TimeoutError, TimeoutExpired) as error:
        report.final.append(f"it took too long: {error}")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - what was seen until then is checked in any case
        traceback.print_exc()
        report.unfinished = report.unfinished or f"{type(error).__name__}: {error}"


def _final(world: World) -> list[str]:
    published = world.history.published
    access = {owner: published.of((resources.ORGANIZATION, owner, owner))[-1].value for owner in ORGANIZATIONS}
    deleted = [owner for owner, value in access.items() if value is None]
    return [
        *_wrong_documents(world),
        *_wrong_letters(world, deleted),
        *_wrong_access(world, access),
        *world.unexplained_keys(),
        *_not_erased(world, deleted),
        *_problems(world),
    ]


def _problems(world: World) -> list[str]:
    """After all ways out, `status` says soon that all is well. That of the bad records is to accept them."""
    world.command(*world.accepting)
    kinds = [""]

    def is_well() -> bool:
        kinds[:] = world.problems()
        return not kinds

    with suppress(TimeoutError):
        wait_until(is_well, "all is well", interval=1.0)
    return [f"status names {kind}" for kind in kinds]


def _not_erased(world: World, deleted: Sequence[str]) -> Iterator[str]:
    owners = [names.of_organization(names.organization(organization)) for organization in deleted]

    def left() -> list[bytes]:
        return [key for owner in owners for key in world.leadview.redis.scan_iter(owner, count=5000)]

    with suppress(TimeoutError):  # a projector erases them soon
        wait_until(lambda: not left(), "nothing of the deleted organizations is left")
    if keys := left():
        yield f"{len(keys)} keys of deleted organizations: {keys[:5]}"


def _wrong_documents(world: World) -> Iterator[str]:
    """Of each generation that is served or was: what is written is compared byte for byte."""
    expected = world.leadview.expected()
    for generation in filter(world.leadview.is_complete, numbers(world.leadview.state().written)):
        found = stored.documents(world.leadview.redis, generation)
        differing = [entity for entity in {*expected, *found} if expected.get(entity) != found.get(entity)]
        if differing:
            yield f"generation {generation}: {len(differing)} documents differ: {differing[:5]}"
        try:
            stored.assert_consistent(world.leadview.redis, generation, after_crash=True)
        except AssertionError as error:
            yield f"generation {generation}: {error}"


def _wrong_letters(world: World, deleted: Sequence[str]) -> Iterator[str]:
    unlisted = {key.decode() for key in world.unlisted}
    bad_keys = (key.decode() for key in world.leadview.topics.bad_keys)
    expected = sorted(key for key in bad_keys if not key.startswith(tuple(deleted)))
    keys = [""]

    def are_right() -> bool:
        listed = (orjson.loads(letter)["key"] for letter in world.leadview.redis.hvals(names.DEAD_LETTERS))
        keys[:] = sorted(key for key in listed if key not in unlisted)
        return keys == expected

    with suppress(TimeoutError):  # those of deleted organizations are erased soon
        wait_until(are_right, "the dead letters are right")
    if keys != expected:
        surplus, missing = {*keys} - {*expected}, {*expected} - {*keys}
        yield f"{len(keys)} dead letters, {len(expected)} bad records that should have one: {surplus=}, {missing=}"


def _wrong_access(world: World, access: Mapping[str, str | None]) -> Iterator[str]:
    """Compares the answer of each API process to every key with its last event."""
    for organization, key_id, port in product(ORGANIZATIONS, KEY_IDS, world.ports):
        key = (resources.API_KEY, organization, key_id)
        status = world.history.published.of(key)[-1].value
        expected = {None: 401, "off": 403}.get(access[organization], 200) if status == "active" else 401
        # The first lead of an organization is never deleted. That a key was refused is remembered for half a second.
        ask = partial(ApiServer(port).get, LEADS + Core(0).leads[0], key=key_text(key))
        answer = wait_for(ask, lambda answer: expected == REFUSED or answer.status != REFUSED, "it is known")  # noqa: B023
        if answer.status != expected:
            yield f"{key}: {answer.status}, and not {expected}"
