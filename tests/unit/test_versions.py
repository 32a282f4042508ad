"""The guard of `mapping.VERSION`: documents that change without it would never be rebuilt. What a former version of the
program has stored is read during an upgrade; and what this one stores, by that one.
"""

import hashlib
import re

import msgspec
import orjson
import pytest
from msgspec.structs import replace

from devstack.programs import ROOT
from projector import mapping
from projector.dead_letter import DeadLetter
from projector.problem import of_line
from projector.words import say
from schemas import words
from schemas.faults import Fault
from schemas.heartbeat import FailingLine, Former, HaltedLine, Heartbeat, LineTrouble, StandingByLine
from schemas.resources import RESOURCES
from tests.harness import crm
from tests.harness.expected import documents_of

HISTORY = ROOT / "tests" / "data" / "mapping-versions.json"
"""The hash of the documents of `fixed_events` for each version of the mapping that there ever was."""


def fixed_events() -> list[crm.Message]:
    """Returns for each resource an event with every field (test_resources.py asserts that), and a minimal one."""
    return [
        crm.changed(resource, msgspec.to_builtins(entity))
        for resource in RESOURCES
        for entity in (resource.event_example, replace(crm.minimal(resource), id=crm.uuid(0xE1)))
    ]


def test_documents_change_with_the_version_only() -> None:
    documents = documents_of(message.record(offset) for offset, message in enumerate(fixed_events()))
    assert len(documents) == 2 * len(RESOURCES)
    ordered = sorted(documents.items(), key=lambda item: (item[0][0].topic, item[0][2]))
    found = hashlib.sha256(b"\n".join(document for _, document in ordered)).hexdigest()
    history, version = orjson.loads(HISTORY.read_bytes()), str(mapping.VERSION)
    add = f'end the last line of tests/data/{HISTORY.name} with a comma, and add after it: "%d": "{found}"'
    assert version in history, add % mapping.VERSION
    assert history[version] == found, (
        "The documents changed, so live generations need a rebuild. Raise VERSION in projector/mapping.py to "
        f"{mapping.VERSION + 1}, {add % (mapping.VERSION + 1)} (change no other line), and run `.venv/bin/python -m "
        "docs.generate`. Only if this version was never released, replace its hash instead."
    )
    assert max(map(int, history)) == mapping.VERSION


@pytest.mark.parametrize("version", orjson.loads(HISTORY.read_bytes()))
def test_the_changelog_names_every_version(version: str) -> None:
    """An operator reads there which release needs a rebuild."""
    named = re.findall(r"mapping\s+version\s+(\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.IGNORECASE)
    assert version in named, f"describe the change in CHANGELOG.md, and write that it is mapping version {version}"


LETTER = (
    b'{"topic":"crm.leads","partition":0,"offset":7,"key":"k","reason":"`$.data.stage` is missing","time":1,'
    b'"accepted":false,"note":"","accepted_at":null,"offsets":1,"version":null}'
)
HEARTBEAT = (
    b'{"role":"run","mapping":3,"stamp":"1.0.a","lines":{"access":"running","documents":"halted: 5 consecutive bad '
    b'records"},"partitions":{"documents":3},"problems":["documents: halted: 5 consecutive bad records"],'
    b'"kinds":["halted"],"measured_at":0,"complete_until":0}'
)
FAULT = Fault("missing", "$.data.stage")


def test_dead_letter_of_the_former_program_keeps_its_words() -> None:
    letter = msgspec.json.decode(LETTER, type=DeadLetter)
    assert (letter.reason, letter.fault) == ("`$.data.stage` is missing", None)
    assert msgspec.json.decode(letter.accept("why", 9).stored, type=DeadLetter).reason == letter.reason


def test_dead_letter_is_stored_without_words_and_read_with_them() -> None:
    letter = DeadLetter("crm.leads", 0, 7, "k", "", 1, fault=FAULT)
    assert words.fault(FAULT).encode() not in letter.stored
    stored = msgspec.json.decode(letter.stored)
    assert stored.keys() >= {"topic", "partition", "offset", "key", "reason", "time"}, (
        "the former program requires them"
    )
    assert (stored["reason"], letter.reason) == ("", "`$.data.stage` is missing")
    assert msgspec.json.decode(letter.stored, type=DeadLetter) == letter


def test_heartbeat_of_the_former_program_is_read() -> None:
    heartbeat = msgspec.json.decode(HEARTBEAT, type=Heartbeat)
    former = Former("halted", "5 consecutive bad records")
    assert [heartbeat.trouble(line) for line in ("access", "documents")] == [None, former]
    assert heartbeat.expected == 0, "any number"
    assert words.line_state(heartbeat.lines["documents"], None) == "halted: 5 consecutive bad records"
    assert say(of_line("documents", former)).what == "line documents is stopped: 5 consecutive bad records"


def test_heartbeat_holds_kinds_that_the_former_program_can_read() -> None:
    troubles: dict[str, LineTrouble] = {
        "access": StandingByLine(2, 9, 3),
        "documents": HaltedLine("share", 101, 1000, 0.1, "crm.leads:0:8", FAULT, 101, ("crm.leads:0:1-8",)),
        "rebuild": FailingLine("rebuild", "KeyError"),
    }
    states = {line: trouble.state for line, trouble in troubles.items()}
    stored = msgspec.json.encode(Heartbeat("run", 3, "1.0.a", lines=states, troubles=troubles))
    assert msgspec.json.decode(stored)["lines"] == states, "the former program reads texts"
    read = msgspec.json.decode(stored, type=Heartbeat)
    assert {line: read.trouble(line) for line in states} == troubles
