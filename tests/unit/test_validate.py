"""`validate`: the records of a producer in lines, judged by the decoder of the projector."""

import base64
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import yaml

from devstack.programs import ROOT, environment
from schemas import resources
from tests.harness import crm
from tests.harness.commands import Finished, call
from tests.harness.expected import documents_of
from tests.harness.programs import printed_by

Validated = Callable[..., Finished]
PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
STAGES = ["ACCEPTED", "IN_PROGRESS", "NEW", "QUOTE_SENT", "REJECTED", "STALE"]
TYPO = crm.lead(1, event_typ_key="wedding")


def as_line(message: crm.Message, **others: Any) -> str:
    value = None if message.value is None else orjson.loads(message.value)
    record = {"key": message.key.decode(), "value": value}
    if message.headers:
        record["headers"] = {name: content.decode() for name, content in message.headers}
    return orjson.dumps(record | others).decode()


def as_tabbed(message: crm.Message) -> str:
    return f"{message.key.decode()}\t{(message.value or b'').decode()}"


def without(line: str, *names: str) -> str:
    return orjson.dumps({name: value for name, value in orjson.loads(line).items() if name not in names}).decode()


def in_base64(message: crm.Message, value: bytes) -> str:
    return without(as_line(message, value_base64=base64.b64encode(value).decode()), "value")


def validate(*words: str, stdin: str = "") -> Finished:
    """Run it without Kafka and Redis."""
    return call("validate", *words, environment=environment(kafka_bootstrap_servers="127.0.0.1:1"), stdin=stdin)


@pytest.fixture
def validated(tmp_path: Path) -> Validated:
    """Runs `validate` on lines in a file, which is `FILE` in its output."""

    def run(lines: Sequence[str | bytes], *words: str) -> Finished:
        file = tmp_path / "records.jsonl"
        file.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
        done = validate(str(file), *words)
        return done._replace(stdout=done.stdout.replace(str(file), "FILE"))

    return run


def faults_of(done: Finished) -> list[dict[str, Any]]:
    """Returns what `--json` says of one record."""
    found = orjson.loads(done.stdout)
    assert (done.status, found["bad"], found["records"]) == (int(bool(found["faults"])), done.status, 1)
    return list(found["faults"])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(as_line(crm.lead(1)), id="structured"),
        pytest.param(as_line(crm.binary(crm.contact(1))), id="binary"),
        pytest.param(
            as_line(
                crm.binary(crm.lead(1)),
                headers=[[name, word.decode()] for name, word in crm.binary(crm.lead(1)).headers],
            ),
            id="headers as pairs",
        ),
        pytest.param(as_line(crm.organization(1)), id="an organization"),
        pytest.param(as_line(crm.deleted(resources.API_KEY, 2)), id="a deletion"),
        pytest.param(as_line(crm.lead(1), value=(crm.lead(1).value or b"").decode()), id="the value as a text"),
        pytest.param(in_base64(crm.lead(1), crm.lead(1).value or b""), id="the value as bytes"),
        pytest.param(
            in_base64(crm.contact(1), b"\0\0\0\0\x07" + (crm.contact(1).value or b"")),
            id="the frame of a schema registry",
        ),
        pytest.param(as_line(crm.tombstone(resources.LEAD)), id="a tombstone"),
        pytest.param(as_line(crm.tombstone(resources.ORGANIZATION)), id="a tombstone of an organization"),
        pytest.param(as_tabbed(crm.lead(1)), id="key, tab and value"),
        pytest.param(as_tabbed(crm.tombstone(resources.LEAD)), id="a tombstone after a tab"),
        pytest.param(as_tabbed(crm.tombstone(resources.LEAD)) + "null", id="as the console consumer prints it"),
        pytest.param(as_tabbed(crm.lead(1)) + "\r", id="a line of Windows"),
        pytest.param(as_line(crm.lead(1), topic="crm.leads", partition=1, offset=7, timestamp=1), id="from Kafka"),
        pytest.param("   \n" + as_line(crm.lead(1)), id="behind an empty line"),
    ],
)
def test_good_line_has_no_fault(validated: Validated, line: str) -> None:
    assert validated([line], "--strict") == (0, "1 record: all good\n", "")


def test_strict_refuses_a_tombstone_whose_header_says_changed(validated: Validated) -> None:
    line = as_line(crm.binary(crm.contact(1)), value=None)
    assert validated([line]).status == 0
    done = validated([line], "--strict")
    assert (done.status, "header ce_type says that it was changed" in done.stdout) == (1, True)


@pytest.mark.parametrize("lines", [pytest.param([], id="an empty file"), pytest.param(["   ", ""], id="empty lines")])
def test_source_without_a_record_fails_only_if_strict(validated: Validated, lines: list[str]) -> None:
    """Whoever checks a file strictly expects records: perhaps the program that should have written them failed."""
    assert validated(lines) == (0, "0 records: nothing to check\n", "")
    nothing = "it has no record, so nothing was checked"
    assert validated(lines, "--strict") == (1, f"FILE: {nothing}\n0 records: nothing to check\n", "")
    done = validated(lines, "--strict", "--json")
    found = orjson.loads(done.stdout)
    reasons = [fault["reason"] for fault in found["faults"]]
    assert (done.status, found["records"], found["bad"], reasons) == (1, 0, 0, [nothing])


OF_BINARY = ("ce_specversion", "ce_id", "ce_source", "ce_type")
STRUCTURED = {"content-type": "application/cloudevents+json"}
KEY = crm.lead(1).key.decode()
LINE = as_line(crm.lead(1))


@pytest.mark.parametrize(
    ("line", "path", "said"),
    [
        pytest.param(as_line(crm.lead(1, stage="new")), "$.data.stage", "allowed are ACCEPTED, ", id="a value"),
        pytest.param(as_line(crm.binary(crm.lead(1, stage="new"))), "$.stage", "allowed are ACCEPTED, ", id="binary"),
        pytest.param(
            as_line(crm.contact(1), topic="crm.leads"), "$.type", "allowed are crm.lead.changed, ", id="another topic"
        ),
        pytest.param(as_line(crm.lead(1), topic="leads"), "", "", id="a topic without its prefix"),
        pytest.param(as_line(crm.lead(1), topic="crm.bookings"), "topic", "allowed are crm.org", id="no such topic"),
        pytest.param(without(LINE, "key"), "key", "the message key is missing: expected <org", id="no key"),
        pytest.param(
            orjson.dumps(orjson.loads(LINE)["value"]).decode(), "line", "without its message key", id="an event alone"
        ),
        pytest.param(without(LINE, "value"), "line", "`value` is missing; null is a tombstone", id="no value"),
        pytest.param(as_line(crm.lead(1), header={}), "line", "unknown field `header`", id="a mistyped name"),
        pytest.param(as_line(crm.lead(1), value_base64="~"), "line", "not base64", id="not base64"),
        pytest.param(LINE[:40], "line", "cannot be read", id="half a line"),
        pytest.param(b'{"key": "\xff", "value": null}', "line", "cannot be read", id="not UTF-8"),
        pytest.param("x", "line", "a key, a tab and a value", id="neither form"),
        pytest.param(
            as_line(crm.lead(1), value={"type": "crm.leads"}), "$.type", "crm.organization.changed", id="type"
        ),
        pytest.param(as_line(crm.lead(1), value={"type": 7}), "$.type", "is not valid", id="a type of another type"),
        pytest.param(as_line(crm.lead(1), value={"data": {}}), "$.type", "is missing: allowed are", id="no type"),
        pytest.param(as_line(crm.lead(1), value=crm.lead_data()), "$.type", "in the headers ce_spec", id="data alone"),
        pytest.param(
            as_line(crm.lead(1), value={"schema": {}, "payload": {}}), "$.type", "schemas.enable=false", id="Connect"
        ),
        pytest.param(
            as_line(crm.binary(crm.lead(1)), headers={"ce_specversion": "1.0"}),
            "headers.ce_type",
            "is missing",
            id="ce",
        ),
        pytest.param(as_line(crm.lead(1), value=[1]), "$", "is an array: expected an object", id="an array"),
        pytest.param(as_line(crm.lead(1), value="no JSON"), "$", "the value is not JSON", id="not JSON"),
        pytest.param(in_base64(crm.lead(1), b"\0\0\0\0\x07\x02\x48abc"), "$", "frame of a schema registry", id="Avro"),
        pytest.param(as_line(crm.lead(1), key=KEY.upper()), "key", "with ids in lower case", id="the message key"),
        pytest.param(as_line(crm.lead(1), key=None), "key", "the message key is missing", id="a key of null"),
        pytest.param(as_line(crm.tombstone(resources.LEAD), key="a:b"), "key", "<entity_id>", id="a tombstone's key"),
        pytest.param(as_line(crm.lead(1), key="k" * 201), "key", "more than 200", id="a limit of keys"),
        pytest.param(
            as_line(crm.lead(1, referrer="x" * 1_100_000)), "$", "the value has 1,100,", id="a limit of values"
        ),
        pytest.param(
            as_line(crm.lead(1), headers={f"h{n}": "" for n in range(101)}), "headers", "101 headers", id="of headers"
        ),
        pytest.param(
            as_line(crm.lead(1), headers={"h": "x" * 70_000}), "headers", "70,001 bytes", id="a limit of their size"
        ),
        pytest.param(as_tabbed(crm.lead(0)), "$.data.version", "an integer from 1 to", id="after a tab"),
        pytest.param(
            as_line(crm.contact(1), headers=dict(zip(OF_BINARY, ("1.0", "1", "/crm", "x"), strict=True)) | STRUCTURED),
            "",
            "",
            id="structured by its content type, with headers of binary mode",
        ),
        pytest.param(
            as_line(crm.binary(crm.lead(1)), headers={name.upper(): "1.0" for name in OF_BINARY}, topic="crm.leads"),
            "headers.CE_ID",
            "has to be ce_id",
            id="headers in capitals",
        ),
    ],
)
def test_bad_line_has_a_fault_with_its_path(validated: Validated, line: str | bytes, path: str, said: str) -> None:
    faults = faults_of(validated([line], "--json"))
    assert [fault["path"] for fault in faults] == ([path] if path else [])
    assert all(said in fault["reason"] for fault in faults)


def test_the_command_of_the_readme_works_in_a_clone(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(LINE)
    [words] = re.findall(r"`\.venv/bin/python (.+ validate) events\.jsonl`", (ROOT / "README.md").read_text("utf-8"))
    command = [sys.executable, *words.split(), str(file)]
    assert printed_by(command, directory=ROOT) == "1 record: all good\n"


INDENTED = orjson.dumps(orjson.loads(LINE), option=orjson.OPT_INDENT_2).decode()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([INDENTED], id="alone"),
        pytest.param([orjson.dumps([orjson.loads(LINE)], option=orjson.OPT_INDENT_2).decode()], id="in a list"),
        pytest.param([LINE, INDENTED, LINE], id="between others"),
    ],
)
def test_record_over_several_lines_is_one_fault(validated: Validated, lines: list[str]) -> None:
    done = validated(lines)
    assert (done.status, done.stdout.count("write each record in one line")) == (1, 1)
    assert done.stdout.endswith(f"{len(lines)} record{'s' * (len(lines) > 1)}: 1 bad\n")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([LINE], ["--render"], id="documents"),
        pytest.param(["x"] * 1000, [], id="while it reads"),
    ],
)
def test_the_reader_of_its_output_has_ended(lines: list[str], words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "projector", "validate", *words],
            input="\n".join(lines).encode(),
            stdout=output,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    wrong = [words for words in (b"Error", b"cannot be read") if words in done.stderr]
    assert (done.returncode, wrong) == (1, []), done.stderr


def test_fault_has_its_line_its_field_and_what_is_expected(validated: Validated) -> None:
    lines = [LINE, "", as_line(crm.lead(1, stage="new"))]
    text = f"`$.data.stage` is not valid: allowed are {', '.join(STAGES)} (event e1 of /crm)"
    assert validated(lines) == (1, f"FILE:3: {text}\n2 records: 1 bad\n", "")
    [fault] = orjson.loads(validated(lines, "--json").stdout)["faults"]
    expected = {"path": "$.data.stage", "expected": f"one of {', '.join(STAGES)}", "allowed": STAGES, "reason": text}
    assert fault == {"file": "FILE", "line": 3, **expected}


MISTYPED = crm.binary(crm.lead(1))
MISTYPED = msgspec.structs.replace(MISTYPED, headers=(*MISTYPED.headers[:4], ("ce_tiem", b"x")))


def test_strict_names_the_nearest_known_field(validated: Validated) -> None:
    assert validated([as_line(TYPO)]) == (0, "1 record: all good\n", "")
    said = "FILE:1: `$.data.event_typ_key` is not a known field: did you mean `event_type_key`?\n"
    assert validated([as_line(TYPO)], "--strict").stdout.startswith(said)


@pytest.mark.parametrize(
    ("message", "paths"),
    [
        pytest.param(crm.lead(1, stage="new", colour=1), ["$.data.stage", "$.data.colour"], id="a bad record as well"),
        pytest.param(MISTYPED, ["headers.ce_tiem"], id="a header"),
    ],
)
def test_strict_finds_unknown_fields(validated: Validated, message: crm.Message, paths: list[str]) -> None:
    assert [fault["path"] for fault in faults_of(validated([as_line(message)], "--strict", "--json"))] == paths


@pytest.mark.parametrize(("kind", "paths"), [("lead", []), ("organization", ["key"])])
def test_the_kind_may_be_given(validated: Validated, kind: str, paths: list[str]) -> None:
    done = validated([as_line(crm.tombstone(resources.LEAD))], "--json", "--kind", kind)
    assert [fault["path"] for fault in faults_of(done)] == paths


def test_validate_reads_standard_input_and_several_files(tmp_path: Path) -> None:
    for words in ([], ["-"]):
        assert validate(*words, stdin="x\n").stdout.startswith("-:1: the line is not a record")
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_text(LINE)
    assert validate(*map(str, files)) == (0, "2 records: all good\n", "")


@pytest.mark.parametrize("words", [(), ("--json",), ("--strict",)], ids=" ".join)
def test_render_prints_what_readers_would_get(validated: Validated, words: tuple[str, ...]) -> None:
    """Byte for byte what the reference says, one document a line, in the order of the records; nothing else."""
    messages = [
        crm.organization(1),
        crm.lead(2),
        crm.contact(1, first_name="Ada"),
        crm.binary(crm.contact(3, first_name="Grace")),
        crm.contact(2, first_name="Late"),
    ]
    done = validated([as_line(message) for message in messages], "--render", *words)
    expected = documents_of(message.record(offset) for offset, message in enumerate(messages))
    lead, *contacts = done.stdout.encode().splitlines()
    assert {
        (resources.LEAD, crm.ORGANIZATION, crm.LEAD): lead,
        (resources.CONTACT, crm.ORGANIZATION, crm.CONTACT): contacts[1],
    } == expected
    assert orjson.loads(lead)["contact"]["first_name"] == "Grace", "the newest one, though it comes later"
    assert [orjson.loads(contact)["first_name"] for contact in contacts] == ["Ada", "Grace", "Late"]


@pytest.mark.parametrize(
    ("messages", "contacts"),
    [
        pytest.param([crm.lead(1)], [None], id="a lead without its contact"),
        pytest.param([crm.lead(1), crm.contact(1), crm.tombstone(resources.CONTACT)], [None], id="a deleted contact"),
        pytest.param([crm.deleted(resources.LEAD, 2), crm.tombstone(resources.LEAD)], [], id="deletions show nothing"),
    ],
)
def test_render_without_the_contact_shows_null(
    validated: Validated, messages: list[crm.Message], contacts: list[None]
) -> None:
    lines = [as_line(message, topic=f"crm.{message.kind.topic}") for message in messages]
    shown = [orjson.loads(line) for line in validated(lines, "--render").stdout.splitlines()]
    assert [document["contact"] for document in shown if "contact" in document] == contacts


def test_render_keeps_what_is_wrong_out_of_the_documents(validated: Validated) -> None:
    lines = [as_line(crm.lead(1, stage="new")), as_line(crm.contact(1))]
    text, json = validated(lines, "--render"), validated(lines, "--render", "--json")
    assert [orjson.loads(done.stdout)["id"] for done in (text, json)] == [crm.CONTACT, crm.CONTACT]
    assert re.search(r"`\$\.data\.stage` is not valid.*\n2 records: 1 bad\n\Z", text.stderr)
    assert [fault["path"] for fault in orjson.loads(json.stderr)["faults"]] == ["$.data.stage"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["/no/such/file"], "/no/such/file cannot be read: No such file", id="no file"),
        pytest.param(["--topic", "crm.bookings"], "name one of crm.organizations, ", id="no topic of ours"),
        pytest.param(["--topic", "crm.leads"], "Kafka cannot be reached at 127.0.0.1:1", id="no Kafka"),
        pytest.param(["a", "--topic", "crm.leads"], "not both", id="files and a topic"),
        pytest.param(["--from", "7"], "--from needs a --topic", id="an offset of a file"),
        pytest.param(["--kind", "booking"], "invalid choice", id="another kind"),
        pytest.param(["--kind", "lead", "--topic", "crm.leads"], "not allowed with", id="a topic says its kind"),
        pytest.param(["--strictly"], "unrecognized", id="another option"),
    ],
)
def test_source_that_cannot_be_read_exits_with_2(words: list[str], said: str) -> None:
    done = validate(*words)
    assert (done.status, done.stdout, said in done.stderr) == (2, "", True), done.output


ACTIONS, HOOKS = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.heavy
def test_the_examples_for_producers_find_a_mistake(tmp_path: Path) -> None:
    """Their commands, in a folder of a producer, with the command `leadview` in the path."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "leads.jsonl").write_text(as_line(TYPO))
    command = tmp_path / "bin" / "leadview"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m leadview "$@"\n')
    command.chmod(0o755)
    steps = ACTIONS["jobs"]["events"]["steps"]
    [hook] = HOOKS["repos"][0]["hooks"]
    files = [name for name in ("events/leads.jsonl", "events/readme.md") if re.search(hook["files"], name)]
    [released] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert released["id"] == hook["id"]
    entry = [*shlex.split(released["entry"]), *released.get("args", ())]
    for script in (steps[-1]["run"], shlex.join([*entry, *files])):
        done = subprocess.run(
            ["bash", "-e", "-c", script],  # noqa: S607
            cwd=tmp_path,
            env={"PATH": f"{command.parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, ""), done.stdout
        assert "did you mean `event_type_key`?" in done.stdout


def test_record_that_is_nested_too_deeply_is_bad_in_each_form(validated: Validated) -> None:
    """No version of Python reads it to its end, or none would."""
    message = crm.within(crm.lead(unknown="PLACE"), b"[" * 1_500 + b"]" * 1_500)
    key, value = message.key or b"", message.value or b""
    done = validated([key + b"\t" + value, b'{"key":"' + key + b'","value":' + value + b"}"])
    assert (done.status, done.output.count("the JSON is nested too deeply")) == (1, 2), done
