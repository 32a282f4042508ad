"""A chaos run from its beginning to its verdict."""

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import product
from math import inf
from subprocess import TimeoutExpired

import orjson
from msgspec import Struct, field

from devstack.threads import Repeating
from schemas import names, resources
from tests.chaos.checker import Verdict
from tests.chaos.core import KEY_IDS, ORGANIZATIONS, Core, Writer, key_text
from tests.chaos.history import now
from tests.chaos.nemesis import Fault, Nemesis
from tests.chaos.operators import Operator
from tests.chaos.pulse import Probe, Pulse
from tests.chaos.reader import Reader, check
from tests.chaos.world import World
from tests.harness import stored
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.generations import numbers


class Rates(Struct, frozen=True):
    """Changes a second, readers, and questions a second of each of these."""

    changes: float = 150
    readers: int = 3
    questions: float = 40


_MODEST = Rates()
_BUSY_SHARE = 0.3
_ANSWER_SECONDS = 20.0


class Report(Struct):
    """What was done, and what was found. `final` says what is wrong with what Redis holds in the end."""

    seed: int
    seconds: float
    published: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    """The longest time that the recovery from each fault took, after it had ended."""
    operations: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    final: list[str] = field(default_factory=list)
    documents: int = 0
    busy: float = 0.0
    """Seconds in which the machine was too busy to judge whether the API was there."""
    unfinished: str = ""
    """Why the run could not be finished; what had happened by then was checked."""

    @property
    def status(self) -> int:
        """Returns 0 if all was right, 1 if something was wrong, and 2 if nothing was but the run was not finished."""
        return 1 if self.verdict.anomalies or self.final else 2 if self.unfinished else 0

    @property
    def is_right(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        checked = ", ".join(
            f"{count} x {status or 'no answer'}" for status, count in sorted(self.verdict.checked.items())
        )
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {self.published} changes published; answers checked: {checked}",
            f"{self.verdict.dated} of them say what they contain (Data-As-Of)",
        ]
        lines += [
            f"  {name:<20} x {count:<3} recovered within {self.slowest[name]:.1f} s"
            for name, count in sorted(self.faults.items())
        ]
        lines += [f"  operator: {', '.join(f'{name} x {count}' for name, count in sorted(self.operations.items()))}"]
        lines += [f"  a change of access was seen within {self.verdict.latest:.2f} s while all was well"]
        lines += [f"  the machine was too busy to be judged for {self.busy:.1f} s"] * (self.busy > 0)
        lines += [f"  503 lasted {self.verdict.longest:.1f} s at most while nothing hindered and nothing was applied"]
        lines += [f"  in the end {self.documents} documents, dead letters and access compared with the reference"]
        lines += [f"WRONG {anomaly}" for anomaly in self.verdict.anomalies[:20]]
        lines += [f"WRONG in the end: {what}" for what in self.final]
        lines += [f"NOT FINISHED: {self.unfinished}"] * bool(self.unfinished)
        wrong = len(self.verdict.anomalies) + len(self.final)
        verdicts = ("all is right", f"{wrong} anomalies", "not finished, and nothing wrong until then")
        return "\n".join([*lines, verdicts[self.status]])


def run(
    world: World,
    seed: int,
    seconds: float,
    faults: Sequence[Fault],
    *,
    rates: Rates = _MODEST,
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
    world.again = core.again
    writer = Writer(world, core, rates.changes, seed, rests=True)
    readers = [
        Reader([_connection(port) for port in world.ports], core, seed + number, rates.questions)
        for number in range(rates.readers)
    ]
    operator, pulse, probe = Operator(world, seed), Pulse(), Probe(world)
    threads: list[Repeating] = [pulse, probe, writer, operator, *readers]
    with judging(report):
        world.start()
        writer.publish(core.first())
        world.catch_up()
        for thread in threads:
            thread.start()
        Nemesis(world, faults, seed, pace=pace, pairs=pairs).run(seconds)
    for thread in threads:
        if thread.ident:
            with judging(report):
                thread.stop()
    if not report.final and not report.unfinished:
        with judging(report):
            world.catch_up()
            report.final += _final(world)
    report.final += [*operator.wrong, *world.wrong]
    report.seconds, report.published, report.operations = now() - began_at, writer.number, operator.done
    report.operations["suspended"] = world.suspended
    report.documents = len(world.leadview.expected())
    history = world.history
    history.beats += probe.beats
    for window in history.windows:
        report.faults[window.fault] += 1
        took = window.recovered_at - window.healed_at if window.recovered_at < inf else 0.0
        report.slowest[window.fault] = max(report.slowest.get(window.fault, 0.0), took)
    history.windows += pulse.windows
    report.busy = sum(window.healed_at - window.began_at for window in pulse.windows)
    if report.busy > _BUSY_SHARE * report.seconds and not report.unfinished:
        report.unfinished = "the machine was too busy for most answers to be judged"
    report.verdict = check(writer, readers, access_seconds)
    return report


def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)


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
    """What differs from what is right, now that all is applied."""
    return [
        *_wrong_documents(world),
        *_wrong_letters(world),
        *_wrong_access(world),
        *world.unexplained_keys(),
        *_not_erased(world),
    ]


def _not_erased(world: World) -> list[str]:
    """Returns what is left of deleted organizations."""
    wrong = []
    for organization in ORGANIZATIONS:
        if world.history.published.of((resources.ORGANIZATION, organization, organization))[-1].value is None:
            pattern = names.of_organization(names.organization(organization))
            if left := list(world.client.scan_iter(pattern, count=5000)):
                wrong.append(f"{len(left)} keys of the deleted organization {organization}: {left[:5]}")
    return wrong


def _wrong_documents(world: World) -> list[str]:
    """Of each generation that is served or was: what is written is compared byte for byte."""
    expected = world.leadview.expected()
    wrong = []
    for generation in _complete(world):
        found = stored.documents(world.client, generation)
        differing = [entity for entity in {*expected, *found} if expected.get(entity) != found.get(entity)]
        if differing:
            wrong.append(f"generation {generation}: {len(differing)} documents differ: {differing[:5]}")
        try:
            stored.assert_consistent(world.client, generation, after_crash=True)
        except AssertionError as error:
            wrong.append(f"generation {generation}: {error}")
    return wrong


def _complete(world: World) -> list[int]:
    return [number for number in numbers(world.leadview.state().written) if world.leadview.is_complete(number)]


def _wrong_letters(world: World) -> list[str]:
    letters = [orjson.loads(letter) for letter in world.client.hvals(names.DEAD_LETTERS)]
    keys = sorted(letter["key"] for letter in letters)
    owners = {owner: (resources.ORGANIZATION, owner, owner) for owner in ORGANIZATIONS}
    deleted = tuple(owner for owner, of in owners.items() if world.history.published.of(of)[-1].value is None)
    bad_keys = (key.decode() for key in world.leadview.topics.bad_keys)
    expected = sorted(key for key in bad_keys if not key.startswith(deleted))
    return [] if keys == expected else [f"{len(keys)} dead letters, {len(expected)} bad records that should have one"]


def _wrong_access(world: World) -> list[str]:
    """Compares the answer of each API process to every key with its last event."""
    published = world.history.published
    wrong = []
    for organization in ORGANIZATIONS:
        access = published.of((resources.ORGANIZATION, organization, organization))[-1].value
        for key_id, port in product(KEY_IDS, world.ports):
            key = (resources.API_KEY, organization, key_id)
            status = published.of(key)[-1].value
            expected = 401 if access is None or status != "active" else 403 if access == "off" else 200
            # The first lead of an organization is never deleted.
            answer = ApiServer(port).get(LEADS + Core(0).leads[0], key=key_text(key))
            if answer.status != expected:
                wrong.append(f"{key}: {answer.status}, and not {expected}")
    return wrong
