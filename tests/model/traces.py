"""Traces of real programs, which TLC accepts or refuses by the model of the control record (`trace.tla`)."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from devstack.child import Child
from devstack.waiting import wait_until
from schemas import resources
from schemas.control import GenerationId, Stamp, in_order, number_of, parse_generations
from tests.harness import control, crm
from tests.harness.leadview import Leadview
from tests.harness.projectors import HURRIED
from tests.harness.services import Kafka
from tests.model import tlc
from tests.model.recorder import ORGANIZATIONS, Line, Recorder

_MODULE = Path(__file__).parent / "trace.tla"
_REACHED = re.compile(r'<<"reached", (\d+), (\d+)>>')
PROJECTORS = 2
"""The most projectors at a time, each with a line for documents."""
_COMMANDS = 3
_CONFIGURATION = """CONSTANTS
  Writers = {writers}
  Operators = {operators}
  OldPrograms = {{}}
  OldGenerations = {{}}
  Commands = {{"rebuild", "flip", "drop", "note"}}
  Begin = "running"
  Live = 1
  Written = {{1}}
  Applied = 0
  Recorded = 0
  Records = {records}
  MaxGeneration = {generations}
  MaxCommands = 1000
  MaxDeaths = 0
  MaxCrashes = 99
  MaxEmptied = 1000
  Emptied = {{{{"a"}}, {{"b"}}}}
  Back = {{}}
  MaxBack = 0
  Slow = {{"create", "roll", "fill"}}
  Nonces = {nonces}
  Off = {{}}
SPECIFICATION TraceSpec
VIEW View
CONSTRAINT Reached
CHECK_DEADLOCK FALSE
"""
_SHARDS = ("a", "b")
_ENTITIES = ("x", "y")


class Verdict(NamedTuple):
    """How many lines of a trace the model explains, and all lines as the model has them."""

    explained: int
    lines: list[dict[str, Any]]

    @property
    def is_accepted(self) -> bool:
        return self.explained == len(self.lines)

    def __str__(self) -> str:
        if self.is_accepted:
            return f"accepted, {len(self.lines)} lines"
        before, refused = map(tla, self.lines[self.explained - 1 : self.explained + 1])
        return f"REFUSED after {self.explained} of {len(self.lines)} lines\n  {before}\n  {refused}"


def write(path: Path, trace: Sequence[Line]) -> None:
    """Write a trace in lines of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.Encoder().encode_lines(trace))


def read(path: Path) -> list[Line]:
    """Returns the trace in a file."""
    return msgspec.json.Decoder(Line).decode_lines(path.read_bytes())


def check(traces: Sequence[Sequence[Line]]) -> list[Verdict]:
    """Let TLC explain these traces by the model. Its bounds are those of the traces. Raises JarsMissing, TlcFailed."""
    if not traces:
        return []
    translated = [Translation(trace) for trace in traces]
    generations = max(len(translation.generations) for translation in translated) + 1
    rows = [translation.rows() for translation in translated]
    writers = [
        f"w{number}" for number in range(1, max(1, *(len(translation.writers) for translation in translated)) + 1)
    ]
    for row in chain(*rows):
        for name in ("will", "most"):
            row[name] = dict.fromkeys(writers, 0) | row[name]
        row["docs"] += [dict.fromkeys(_ENTITIES, 0)] * (generations - len(row["docs"]))
    lines = f"---- MODULE lines ----\nEXTENDS Integers\nTraces == {tla(rows)}\n====\n"
    bounds = {
        "writers": tla(set(writers)),
        "operators": tla({f"o{number}" for number in range(1, _COMMANDS + 1)}),
        "records": max(translation.records for translation in translated) + 1,
        "generations": generations,
        "nonces": tla(set(range(max(translation.nonces for translation in translated) + 1))),
    }
    output = tlc.reached(_MODULE, lines, _CONFIGURATION.format(**bounds))
    explained = dict.fromkeys(range(1, len(traces) + 1), 0)
    for trace, line in _REACHED.findall(output):
        explained[int(trace)] = max(explained[int(trace)], int(line))
    return [Verdict(explained[number], some) for number, some in enumerate(rows, start=1)]


class Translation:
    """A trace in the words of the model: programs, generations and incarnations get numbers in their order."""

    def __init__(self, trace: Sequence[Line]) -> None:
        self._trace: Sequence[Line] = trace
        copies = [copy for line in trace for copy in line.copies if copy]
        self.writers = {
            program: f"w{number}"
            for number, program in enumerate(
                dict.fromkeys(line.program for line in trace if line.act == "checkpoint"), start=1
            )
        }
        known = chain.from_iterable(in_order(_generations(copy, "known")) for copy in copies)
        self.generations = {generation: number for number, generation in enumerate(dict.fromkeys(known), start=1)}
        stamps = [Stamp(copy["stamp"]) for copy in copies]
        self._first = min(stamp.epoch for stamp in stamps)
        self._stamps = sorted(set(stamps))
        self._incarnations = list(dict.fromkeys(copy["incarnation"] for copy in copies))
        self.records = max(line.acknowledged for line in trace)
        self.nonces = max(self._nonce(stamp) for stamp in stamps)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the lines, without those that have changed nothing that the model has."""
        rows = [self._row(number) for number in range(len(self._trace))]
        return rows[:1] + [row for before, row in pairwise(rows) if _shown(before) != _shown(row)]

    def _row(self, number: int) -> dict[str, Any]:
        line = self._trace[number]
        documents = [
            {entity: documents.get(generation, 0) for entity, documents in zip(_ENTITIES, line.documents, strict=True)}
            for generation in self.generations
        ]
        return {
            "who": self.writers.get(line.program, "o"),
            "act": line.act,
            "end": line.acknowledged,
            "acts": {self.writers[later.program] for later in self._trace[number:] if later.program in self.writers},
            "will": {name: self._will(number, program) for program, name in self.writers.items()},
            "most": {name: self._most(number, program) for program, name in self.writers.items()},
            "copies": dict(zip(_SHARDS, map(self._copy, line.copies), strict=True)),
            "docs": documents,
        }

    def _will(self, number: int, program: str) -> int:
        """Returns the position that this program stores next, from this line on; 0 if it stores none any more."""
        for before, line in zip(self._trace[number - 1 :], self._trace[number:], strict=False):
            if line.program == program and line.act == "checkpoint":
                own = zip(before.copies, line.copies, strict=True)
                return max(_position(copy) for former, copy in own if copy != former)
        return 0

    def _most(self, number: int, program: str) -> int:
        """Returns the newest record that this program writes before it stores a position, from this line on."""
        newest = 0
        for before, line in zip(self._trace[number - 1 :], self._trace[number:], strict=False):
            if line.program == program and line.act == "checkpoint":
                break
            if line.program == program and line.documents != before.documents:
                newest = max(newest, *(version for shard in line.documents for version in shard.values()))
        return newest

    def _nonce(self, stamp: Stamp) -> int:
        return 1 + [other for other in self._stamps if other.epoch == stamp.epoch].index(stamp)

    def _copy(self, copy: dict[str, str] | None) -> dict[str, Any]:
        if copy is None:
            return {"incarnation": 0}
        stamp, state = Stamp(copy["stamp"]), msgspec.json.decode(copy["state"])
        numbers = {number_of(generation): number for generation, number in self.generations.items()}
        shared = {
            "live": self.generations[GenerationId(state["live"])],
            "written": {self.generations[generation] for generation in state["written"]},
            "dropping": {self.generations[generation] for generation in state.get("dropping", ())},
            "last": numbers[state["last"]],
        }
        own = {
            name: {self.generations[generation] for generation in _generations(copy, name)}
            for name in ("filling", "filled", "swept")
        }
        return {
            "incarnation": self._incarnations.index(copy["incarnation"]) + 1,
            "epoch": stamp.epoch - self._first + 1,
            "nonce": self._nonce(stamp),
            "position": _position(copy),
            **shared,
            **own,
        }


def _shown(row: dict[str, Any]) -> Any:
    return row["copies"], row["docs"]


def _generations(copy: dict[str, str], field: str) -> Iterable[GenerationId]:
    return parse_generations(copy[field].encode())


def _position(copy: dict[str, str] | None) -> int:
    """Returns the position of the leads' only partition."""
    stored = [value for name, value in (copy or {}).items() if name.endswith(f"{resources.LEAD.topic}:0")]
    return int(stored[0].partition(" ")[0]) if stored else 0


def tla(value: Any) -> str:
    """Returns a value in the language of TLA+."""
    match value:
        case bool():
            return str(value).upper()
        case str():
            return f'"{value}"'
        case list():
            return f"<<{', '.join(map(tla, value))}>>"
        case set():
            return f"{{{', '.join(sorted(map(tla, value)))}}}"
        case dict():
            return f"[{', '.join(f'{name} |-> {tla(part)}' for name, part in value.items())}]"
    return str(value)


class Installation:
    """A Leadview on the servers of a recorder, whose core product publishes the records of the model: record i is
    version i of the lead in the first shard if i is odd, otherwise in the second one.
    """

    def __init__(self, leadview: Leadview, recorder: Recorder, command: Sequence[str]) -> None:
        """`command` runs the programs."""
        self.recorder = recorder
        self.leadview = leadview
        self._command = command
        self._projectors: list[Child] = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            version = self.recorder.acknowledged + 1
            organization = ORGANIZATIONS[(version + 1) % 2]
            self.leadview.publish(crm.lead(version, organization_id=organization), partition=0)
            self.recorder.acknowledged = version

    def start(self) -> None:
        """Start a projector, in place of the oldest one if there are as many as the model has."""
        if len(self._projectors) == PROJECTORS:
            self._projectors.pop(0).kill()
        self._projectors.append(self.leadview.start("run", command=self._command))

    def command(self, *words: str) -> None:
        """Run a command of an operator, which may refuse."""
        self.leadview.run(*words, command=self._command)

    def begin(self, *words: str) -> Child:
        """Begin a command of an operator."""
        return self.leadview.start(*words, command=self._command)

    def rebuild(self) -> None:
        self.command("rebuild", "--promote", "--max-latency", "0")

    def command_beside_sleeper(self, *words: str) -> None:
        """The same, while a projector stands still."""
        self._projectors[0].pause()
        try:
            self.command(*words)
        finally:
            self._projectors[0].resume()

    def lose(self, shard: int) -> None:
        """Empty a shard, when the other one has its copy: what begins without any copy is not in the model."""
        wait_until(self._has_copies, "each shard has a copy")
        self.recorder.empty([shard])

    def _has_copies(self) -> bool:
        copies = control.read_all(self.leadview.redis)
        return bool(copies) and None not in copies.values()

    def settle(self) -> None:
        self.leadview.wait_until_served()


Scenario = Callable[[Installation], None]
_ACTS: tuple[Scenario, ...] = (
    lambda installation: installation.publish(3),
    lambda installation: installation.start(),
    lambda installation: installation.rebuild(),
    lambda installation: installation.command("rollback"),
    lambda installation: installation.command("drop"),
    lambda installation: installation.command_beside_sleeper("drop"),
    lambda installation: installation.lose(0),
    lambda installation: installation.lose(1),
)


def at_random(installation: Installation, seed: int, acts: int = 6) -> None:
    """Lets this number of things happen in a random order."""
    random = Random(seed)
    for act in random.choices(_ACTS, k=acts):
        act(installation)
        if random.random() < 0.5:
            installation.publish(1)
    installation.settle()


def run(
    kafka: Kafka, recorder: Recorder, directory: Path, scenario: Scenario, command: Sequence[str] = HURRIED
) -> list[Line]:
    """Let real programs run while this happens. Returns their trace."""
    prefix = f"t{uuid4().hex[:12]}."
    recorder.empty(range(len(recorder.servers)))
    recorder.acknowledged = 0
    (directory / prefix).mkdir(parents=True)
    with Leadview(kafka, prefix, recorder, directory / prefix, batch_records=2) as leadview:
        leadview.topics.create(1)
        installation = Installation(leadview, recorder, command)
        installation.publish(2)
        installation.start()
        installation.settle()
        with recorder.recording() as lines:
            scenario(installation)
        return lines
