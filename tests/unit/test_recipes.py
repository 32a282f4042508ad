"""The recipes of docs/changing.md keep their promise: a step that was forgotten fails in `make unit`, and the message
names the file.

All recipes are done once, in a copy of the tree. Then each step is left out in turn, and a test that `make unit` runs
has to fail, and to name the file that was forgotten.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from projector.mapping import VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "changing.md").read_text("utf-8")
_UNIT = ("-m", "not heavy and not long and not counted", "-q", "--tb=short", "-p", "no:cacheprovider")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")


class Edit(NamedTuple):
    """A change of one file: `new` in place of `old`. An empty `old` stands for the end of the file, or a new file."""

    path: str
    old: str
    new: str


class Step(NamedTuple):
    """A step of a recipe. If it is left out, these tests fail, and name the file."""

    recipe: str
    name: str
    file: str
    tests: str
    edits: tuple[Edit, ...]


class NoTest(NamedTuple):
    """A step that no unit test can miss, and why."""

    recipe: str
    name: str
    why: str


FIELD, RESOURCE, SCRIPT = "Add a field to a lead or a contact", "Add a resource", "Add or change a script of Redis"
METRIC, ALERT, COMMAND = "Add a metric", "Add an alert", "Add a command for operators"
EVENTS, DOCUMENTS, EXAMPLES = "schemas/events.py", "schemas/documents.py", "schemas/examples.py"
MAPPING, RESOURCES, METRICS = "projector/mapping.py", "schemas/resources.py", "schemas/metrics.py"
ENTITIES, SAMPLE, SECURITY = "devstack/entities.py", "devstack/sample.py", "docs/security.md"
RUNBOOK, RULES, TROUBLES = "docs/runbook.md", "docs/generate/rules.yaml", "docs/generate/troubles.py"
HISTORY, CHANGELOG, SCRIPTS = "tests/data/mapping-versions.json", "CHANGELOG.md", "projector/redis/scripts.py"
ARGUMENTS, MAIN = "operate/commands/arguments.py", "operate/main.py"
BY_RESOURCE = "tests/unit/test_resources.py"
BY_METRIC = "tests/unit/test_documents.py::test_every_metric_is_in_the_list_of_its_program_exported_and_tested"
BY_COMMAND = "tests/unit/test_documents.py::test_every_command_is_parsed_run_listed_and_tested"

_NOTE_DOCUMENT = '''

class Note(Struct, frozen=True):
    """A note about a lead."""

    id: Annotated[Uuid, Meta(description="Note identifier")]
    organization_id: Annotated[Uuid, Meta(description="Owning organization")]
    lead_id: Annotated[Uuid, Meta(description="Lead that the note is about")]
    text: Annotated[str, Meta(description="What it says")]
'''
_NOTE_EVENT = '''class Note(Entity, frozen=True, kw_only=True):
    """The `data` of `crm.note.changed`: one note about a lead."""

    lead_id: Uuid
    """The lead that the note is about"""
    text: str
    """What it says"""


'''
_NOTE_EXAMPLES = """
NOTE_EVENT = events.Note(
    id="3b0a1c5e-7d24-4f8b-9e61-0c2d4f6a8b13",
    organization_id=_ORGANIZATION_ID,
    version=1,
    lead_id=LEAD_ID,
    text="Call back",
)

NOTE = documents.Note(NOTE_EVENT.id, _ORGANIZATION_ID, LEAD_ID, NOTE_EVENT.text)
"""
_NOTE_ROW = """NOTE = Resource(
    noun="note",
    topic="notes",
    event=events.Note,
    letter=b"n",
    body_offset=layouts.PLAIN_BODY,
    document=documents.Note,
    example=examples.NOTE,
    event_example=examples.NOTE_EVENT,
    event_faults=({"text": None},),
    summary="Notes about leads",
    about="Returns one note.",
)

"""
_NOTE_MAPPING = '''def note_document(note: events.Note) -> documents.Note:
    """Returns the document of a note."""
    return documents.Note(note.id, note.organization_id, note.lead_id, note.text)


'''
_NOTE_ENTITY = """

def new_note(random: Random, lead: events.Lead) -> events.Note:
    return events.Note(id=uuid(random), organization_id=lead.organization_id, version=1, lead_id=lead.id, text="Hello")
"""
_SALUTATION = '    salutation: Annotated[str | None, Meta(description="How to address them")]\n'
_CENSUS = '''"""`census`: how many keys an organization has."""

import argparse

from operate.commands.operator import Operator


async def run_census(arguments: argparse.Namespace, operator: Operator) -> int:
    """`census`: print it."""
    operator.console.print(arguments.organization)
    return 0
'''

STEPS = (
    Step(FIELD, "Event", EVENTS, BY_RESOURCE, (
        Edit(EVENTS, '    """When the lead was archived"""\n',
             '    """When the lead was archived"""\n    lost_reason: str | None = None\n    """Why it ended"""\n'),
        Edit(EVENTS, '    """The phone number. Served as `phone_number`"""\n',
             '    """The phone number. Served as `phone_number`"""\n    salutation: str | None = None\n'
             '    """How to address them"""\n'),
    )),
    Step(FIELD, "Document", DOCUMENTS, BY_RESOURCE, (
        Edit(DOCUMENTS, '    tasks_count: Annotated',
             '    lost_reason: Annotated[str | None, Meta(description="Why it ended")]\n    tasks_count: Annotated'),
        Edit(DOCUMENTS, "    custom_fields: Annotated[\n", _SALUTATION + "    custom_fields: Annotated[\n"),
    )),
    Step(FIELD, "Contact summary", DOCUMENTS, BY_RESOURCE, (
        Edit(DOCUMENTS, "\n\nclass Lead(Struct", _SALUTATION + "\n\nclass Lead(Struct"),
    )),
    Step(FIELD, "Examples", EXAMPLES, BY_RESOURCE, (
        Edit(EXAMPLES, "    notes_count=3,\n", '    notes_count=3,\n    lost_reason="price",\n'),
        Edit(EXAMPLES, "    booking_id=LEAD.booking_id,\n",
             "    booking_id=LEAD.booking_id,\n    lost_reason=LEAD.lost_reason,\n"),
        Edit(EXAMPLES, '    phone_number="+44 20 7946 0123",\n    custom_fields',
             '    phone_number="+44 20 7946 0123",\n    salutation="Ms",\n    custom_fields'),
        Edit(EXAMPLES, '        phone_number="+44 20 7946 0123",\n',
             '        phone_number="+44 20 7946 0123",\n        salutation="Ms",\n'),
        Edit(EXAMPLES, "    phone=CONTACT.phone_number,\n",
             "    phone=CONTACT.phone_number,\n    salutation=CONTACT.salutation,\n"),
    )),
    Step(FIELD, "Mapping", MAPPING, BY_RESOURCE, (
        Edit(MAPPING, "        counts.tasks or 0,\n", "        lead.lost_reason,\n        counts.tasks or 0,\n"),
        Edit(MAPPING, "        contact.phone,\n", "        contact.phone,\n        contact.salutation,\n"),
    )),
    Step(FIELD, "Version", HISTORY, "tests/unit/test_versions.py", (
        Edit(MAPPING, f"\nVERSION = {VERSION}\n", f"\nVERSION = {VERSION + 1}\n"),
    )),
    Step(FIELD, "Sample data", ENTITIES, BY_RESOURCE, (
        Edit(ENTITIES, '        case "ACCEPTED":\n',
             '        case "REJECTED":\n            changes["lost_reason"] = "price"\n        case "ACCEPTED":\n'),
        Edit(ENTITIES, "        phone=person.phone,\n", '        phone=person.phone,\n        salutation="Ms",\n'),
    )),
    Step(FIELD, "Personal data", SECURITY, "tests/unit/test_security.py", (
        Edit(SECURITY, "texts of its own:\n", "texts of its own:\n`lost_reason`, `salutation`,\n"),
    )),
    Step(FIELD, "Tests", "tests/unit/test_mapping.py", "tests/unit/test_mapping.py", (
        Edit("tests/unit/test_mapping.py", '    "notes_count": 0,\n',
             '    "lost_reason": None,\n    "notes_count": 0,\n'),
        Edit("tests/unit/test_mapping.py", '    ("tags of null",',
             '    ("lost", {"lost_reason": "price"}, {"lost_reason": "price"}),\n    ("tags of null",'),
        Edit("tests/unit/test_mapping.py", '        "custom_fields": {},\n',
             '        "salutation": None,\n        "custom_fields": {},\n'),
        Edit("tests/unit/test_mapping.py", '    ("custom fields of null",',
             '    ("salutation", {"salutation": "Ms"}, {"salutation": "Ms"}),\n    ("custom fields of null",'),
        Edit("tests/unit/test_mapping.py", '            "phone_number": fields.get("phone"),\n',
             '            "phone_number": fields.get("phone"),\n            "salutation": None,\n'),
    )),
    Step(FIELD, "Changelog", CHANGELOG, "tests/unit/test_versions.py", (
        Edit(CHANGELOG, "## [Unreleased]\n", f"## [Unreleased]\n\nMapping version {VERSION + 1} has `lost_reason`.\n"),
    )),
    Step(RESOURCE, "Event", EVENTS, BY_RESOURCE, (
        Edit(EVENTS, "class RateLimit(Struct", _NOTE_EVENT + "class RateLimit(Struct"),
    )),
    Step(RESOURCE, "Document", DOCUMENTS, BY_RESOURCE, (Edit(DOCUMENTS, "", _NOTE_DOCUMENT),)),
    Step(RESOURCE, "Examples", EXAMPLES, BY_RESOURCE, (Edit(EXAMPLES, "", _NOTE_EXAMPLES),)),
    Step(RESOURCE, "The row", RESOURCES, BY_RESOURCE, (
        Edit(RESOURCES, "RESOURCES = (CONTACT, LEAD)\n", _NOTE_ROW + "RESOURCES = (CONTACT, LEAD, NOTE)\n"),
    )),
    Step(RESOURCE, "Mapping", MAPPING, BY_RESOURCE, (
        Edit(MAPPING, "LEAD, ORGANIZATION, RESOURCES, Kind", "LEAD, NOTE, ORGANIZATION, RESOURCES, Kind"),
        Edit(MAPPING, "def contact_summary(", _NOTE_MAPPING + "def contact_summary("),
        Edit(MAPPING, "LEAD: lead_document}", "LEAD: lead_document, NOTE: note_document}"),
    )),
    Step(RESOURCE, "Sample data", SAMPLE, BY_RESOURCE, (
        Edit(ENTITIES, "", _NOTE_ENTITY),
        Edit(SAMPLE, "API_KEY, CONTACT, LEAD, ORGANIZATION, Kind", "API_KEY, CONTACT, LEAD, NOTE, ORGANIZATION, Kind"),
        Edit(SAMPLE, "        yield from map(self._lead, tuple(self.leads.values()))\n",
             "        yield from map(self._lead, tuple(self.leads.values()))\n"
             "        yield from map(self._note, tuple(self.leads.values()))\n"),
        Edit(SAMPLE, "        time = self._time(lead.organization_id)\n        yield self._lead(entities.advanced",
             "        time = self._time(lead.organization_id)\n        yield self._note(lead)\n"
             "        yield self._lead(entities.advanced"),
        Edit(SAMPLE, "    def _contact(self, contact",
             "    def _note(self, lead: events.Lead) -> Message:\n"
             "        return self._message(NOTE, entities.new_note(self._random, lead))\n\n"
             "    def _contact(self, contact"),
    )),
    Step(RESOURCE, "Personal data", SECURITY, "tests/unit/test_security.py", (
        Edit(SECURITY, "`source`, `tags`,", "`source`, `lead_id`, `text`, `tags`,"),
        Edit(SECURITY, "| files, replicas, backups of Redis",
             "| `lv3{<organization>}<generation>n<id>` | document | its delete |\n"
             "| Kafka: `crm.notes` | events | a newer one |\n| files, replicas, backups of Redis"),
    )),
    Step(SCRIPT, "Header", "projector/redis/lua/touch.lua", "tests/unit/test_scripts.py", (
        Edit("projector/redis/lua/touch.lua", "",
             "-- Touches.\n-- Requires  nothing\n-- KEYS  lock\n-- ARGV  seconds\n\n"
             "return redis.call('EXPIRE', KEYS.lock, ARGV.seconds)\n"),
    )),
    Step(SCRIPT, "Caller", SCRIPTS, "tests/unit/test_scripts.py", (
        Edit(SCRIPTS, "# The control record and positions.\n",
             "@_folder.script\ndef touch(*, lock: Key, seconds: int) -> None: ...\n\n\n"
             "# The control record and positions.\n"),
    )),
    Step(METRIC, "Declaration", METRICS, BY_METRIC, (
        Edit(METRICS, "    *(WORKERS, READY_WORKERS, API_PROBLEMS),\n",
             "    *(WORKERS, READY_WORKERS, API_PROBLEMS, PIGEONS),\n"),
    )),
    Step(METRIC, "Value", "api/exporter.py", BY_METRIC, (
        Edit("api/exporter.py", "        yield family(metrics.WORKERS, self._workers)\n",
             "        yield family(metrics.WORKERS, self._workers)\n        yield family(metrics.PIGEONS, 0)\n"),
    )),
    Step(METRIC, "Test", "tests/service/test_api_process.py", BY_METRIC, (
        Edit("tests/service/test_api_process.py", "", "\n\nPIGEONS = 0\n"),
    )),
    Step(ALERT, "Rule", RULES, "tests/unit/test_monitoring.py", (
        Edit(RULES, "      - alert: LeadviewRedisMemory\n",
             "      - alert: LeadviewPigeons\n        expr: max by (INSTALLATION) (leadview_api_pigeons) > 0\n"
             "        for: 5m\n        labels: {severity: ticket}\n        annotations:\n          summary: Pigeons\n"
             "          description: There are pigeons.\n          runbook_url: RUNBOOK#leadviewpigeons\n\n"
             "      - alert: LeadviewRedisMemory\n"),
    )),
    Step(ALERT, "Runbook", RUNBOOK, "tests/unit/test_monitoring.py", (
        Edit(RUNBOOK, "## LeadviewRedisMemory\n",
             "## LeadviewPigeons\n\nThere are pigeons.\n\n## LeadviewRedisMemory\n"),
    )),
    Step(ALERT, "Tests", TROUBLES, "tests/unit/test_monitoring.py", (
        Edit(TROUBLES, '        alerts=("RedisMemory", "Problem"),\n',
             '        alerts=("RedisMemory", "Pigeons", "Problem"),\n'),
    )),
    Step(COMMAND, "Arguments", ARGUMENTS, BY_COMMAND, (
        Edit(ARGUMENTS, "    drop = commands.add_parser(",
             '    commands.add_parser("census", help="census")\n    drop = commands.add_parser('),
    )),
    Step(COMMAND, "What it does", MAIN, BY_COMMAND, (
        Edit("operate/commands/census.py", "", _CENSUS),
        Edit(MAIN, "from operate.commands.arguments",
             "from operate.commands import census\nfrom operate.commands.arguments"),
        Edit(MAIN, '    "usage": usage.run_usage,\n',
             '    "usage": usage.run_usage,\n    "census": census.run_census,\n'),
    )),
    Step(COMMAND, "Documentation", RUNBOOK, BY_COMMAND, (
        Edit(RUNBOOK, "| `leadview dead-letters list` |",
             "| `leadview census` | counts |\n| `leadview dead-letters list` |"),
    )),
    Step(COMMAND, "Wrong arguments", "tests/unit/test_arguments.py", BY_COMMAND, (
        Edit("tests/unit/test_arguments.py", '        pytest.param(["usage"],',
             '        pytest.param(["census", "7"], "unrecognized", id="seven"),\n        pytest.param(["usage"],'),
    )),
    Step(COMMAND, "Test", "tests/service", BY_COMMAND, (
        Edit("tests/service/test_commands.py", "", '\n\nCENSUS = ["census"]\n'),
    )),
)  # fmt: skip
DECLARED = Edit(
    METRICS, "API = (\n", 'PIGEONS = Metric("leadview_api_pigeons", "gauge", "pigeons", "Pigeons")\n\nAPI = (\n'
)
"""The part of the declaration that nothing else can do without."""
_UP_TO_DATE = "tests/unit/test_generated.py::test_every_generated_file_is_up_to_date"
GENERATED = Step(FIELD, "Generated files", "docs/schemas/crm.contact.changed.json", _UP_TO_DATE, ())
NO_TESTS = (
    NoTest(FIELD, "Deployment", "it is not in the tree"),
    NoTest(RESOURCE, "Deployment", "it is not in the tree"),
    NoTest(RESOURCE, "Version and generated files", "they are steps of a field"),
    NoTest(RESOURCE, "Tests", "tests/service/test_resources.py has them"),
    NoTest(SCRIPT, "Codes and places", "a script without its code does not run"),
    NoTest(SCRIPT, "Generated files", "they are a step of a field"),
    NoTest(METRIC, "Generated files", "they are a step of a field"),
)


class Tree:
    """A copy of the tree, in which steps are done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[Step, list[Edit]] = {}
        self._times = count(1_000_000_000)

    def do(self, step: Step, *edits: Edit) -> None:
        for edit in edits:
            path = self.path / edit.path
            text = path.read_text("utf-8") if path.exists() else ""
            assert not edit.old or text.count(edit.old) == 1, f"{edit.path} has not one {edit.old!r}"
            self._write(path, text.replace(edit.old, edit.new) if edit.old else text + edit.new)
            self.done.setdefault(step, []).append(edit)

    @contextmanager
    def without(self, step: Step) -> Iterator[None]:
        """The tree as it is if this step was forgotten."""
        before = {path: path.read_text("utf-8") for path in {self.path / edit.path for edit in self.done[step]}}
        for edit in reversed(self.done[step]):
            path = self.path / edit.path
            text = path.read_text("utf-8")
            assert text.count(edit.new) == 1, f"{edit.path} has not one {edit.new!r}"
            self._write(path, text.replace(edit.new, edit.old))
            if text == edit.new and not edit.old:
                path.unlink()
        try:
            yield
        finally:
            for path, text in before.items():
                self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Write a file at a time of its own: two texts of the same size within a second would be compiled once."""
        path.write_text(text, "utf-8")
        time = next(self._times)
        os.utime(path, (time, time))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Returns the status and what is printed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LEADVIEW_", "PYT"))}
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test(self, *tests: str) -> tuple[int, str]:
        return self.run("pytest", *_UNIT, *tests)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """All recipes are done in it."""
    tree = Tree(tmp_path_factory.mktemp("recipes") / "tree")
    shutil.copytree(ROOT, tree.path, ignore=_LEFT_OUT, symlinks=True)
    (tree.path / "tests" / "unit" / Path(__file__).name).write_text("")  # it names what tests look for
    tree.do(GENERATED, DECLARED)
    tree.done.clear()
    for step in STEPS:
        tree.do(step, *step.edits)
    [version] = (step for step in STEPS if step.name == "Version")
    [(number, digest)] = set(re.findall(r'"(\d+)": "([0-9a-f]{64})"', tree.test(version.tests)[1]))
    tree.do(version, Edit(HISTORY, '"\n}', f'",\n  "{number}": "{digest}"\n}}'))
    before = {path: path.read_text("utf-8") for path in tree.path.rglob("*.*") if path.suffix in _GENERATED}
    status, printed = tree.run("docs.generate")
    assert status == 0, printed
    for path in [path for path in tree.path.rglob("*.*") if path.suffix in _GENERATED]:
        text, name = path.read_text("utf-8"), str(path.relative_to(tree.path))
        if text != before.get(path):
            tree.done.setdefault(GENERATED, []).append(Edit(name, before.get(path, ""), text))
    return tree


_GENERATED = {".json", ".md", ".yaml", ".toml"}


@pytest.mark.long
def test_with_all_steps_done_all_tests_pass(tree: Tree) -> None:
    status, printed = tree.test(*{step.tests for step in (*STEPS, GENERATED)})
    assert status == 0, printed


@pytest.mark.long
@pytest.mark.parametrize("step", [*STEPS, GENERATED], ids=lambda step: f"{step.recipe}: {step.name}")
def test_step_that_is_left_out_fails_and_its_file_is_named(tree: Tree, step: Step) -> None:
    with tree.without(step):
        status, printed = tree.test(step.tests)
    assert status != 0, f"nobody notices that {step.file} was forgotten"
    assert step.file in printed, printed


def test_every_step_of_the_page_is_tried() -> None:
    for recipe in {step.recipe for step in (*STEPS, *NO_TESTS)}:
        text = PAGE.partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
        named = {name for step in (*STEPS, GENERATED, *NO_TESTS) for name in [step.name] if step.recipe == recipe}
        assert set(re.findall(r"^\d+\. \*\*(.+?)\.?\*\*", text, re.MULTILINE)) == named
