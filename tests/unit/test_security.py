"""docs/security.md has a row for each kind of key in Redis, each topic, and each field of the logs that holds an id. It
names each field of a document that may hold personal data.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from docs.generate.tables import TOPICS
from projector.ledger.acts import Act
from schemas import names
from schemas.control import GenerationId
from schemas.resources import RESOURCES
from tests.harness import crm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
OWNER = names.organization(crm.ORGANIZATION)
GENERATION = GenerationId("2.k3x9Qz")
ARGUMENTS: dict[str, Any] = {
    "owner": OWNER,
    "organization_id": crm.ORGANIZATION,
    "generation": GENERATION,
    "contact_id": crm.CONTACT,
    "key_id": crm.API_KEY,
    "key_hash": crm.key_hash(1),
    "verb": "erase",
    "subject": "access",
}
"""Of the functions in `schemas/names.py` that return the name of a key."""
HARMLESS = {
    "accepted", "at", "before", "begin", "breaks", "broker", "brokers", "copy", "dead_letters", "deleted", "dropping",
    "end", "entities", "exit_code", "fields", "generation", "keys", "kind", "layout", "line", "live", "mapping", "now",
    "of", "outcome", "own_layout", "partition", "partitions", "parts", "pid", "position", "problem",
    "projector", "read", "records", "redis", "requests", "seconds", "settings", "share", "since", "skipped", "topic",
    "url", "verb", "version", "written",
}  # fmt: skip
"""Fields of log lines that identify nobody: numbers, kinds, names of topics, addresses of servers."""


NOT_PERSONAL = {
    "archived_at", "assigned_to", "booking_id", "contact", "contact_id", "created_at", "event_date", "event_guests",
    "event_length_hours", "event_timezone", "event_type_key", "events", "id", "notes_count", "organization_id",
    "quote_total", "quotes_count", "stage", "tasks_count", "updated_at",
}  # fmt: skip
"""Fields of documents that say nothing about a person: ids, numbers, times, and words of the organization."""


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[str]:
    """Returns what stands in backticks in the first cell of each row of a section."""
    return [code for line in section(heading).splitlines() if line.startswith("|") for code in first_cell(line)]


def first_cell(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line.split("|")[1])


def names_of_keys() -> set[bytes]:
    """Returns a name of each kind of key that `schemas/names.py` has."""
    found = [OWNER, *(member for member in vars(names).values() if isinstance(member, bytes))]
    for function in filter(inspect.isfunction, vars(names).values()):
        signature = inspect.signature(function)
        if signature.return_annotation is bytes and signature.parameters.keys() <= ARGUMENTS.keys():
            found.append(function(**{name: ARGUMENTS[name] for name in signature.parameters}))
    found += [names.document(resource, OWNER, GENERATION, crm.uuid(1)) for resource in RESOURCES]
    return {
        name
        for name in found
        if name.startswith((names.PREFIX + b"{", names.PREFIX + b":")) and len(name) > 4 and b"*" not in name
    }


def test_every_kind_of_key_has_a_row() -> None:
    patterns = [re.sub(r"<\w+>", "[^{}:]+", re.sub(r"([{}])", r"\\\1", row)) for row in rows("Personal data")]
    found = names_of_keys()
    assert len(found) > 20
    without = [name for name in found if not any(re.fullmatch(pattern, name.decode()) for pattern in patterns)]
    assert without == [], "docs/security.md: say what is under this name, and what deletes it"


def test_every_topic_has_a_row() -> None:
    without = [f"crm.{topic}" for topic in TOPICS if f"crm.{topic}" not in rows("Personal data")]
    assert without == [], "docs/security.md: say what is in this topic, and what deletes it"


def test_every_field_that_may_hold_personal_data_is_named() -> None:
    """Also one inside of another: of a requested event, for example."""
    named = set(re.findall(r"`(\w+)`", section("Personal data").partition("\n|")[0]))
    fields = {field for resource in RESOURCES for field in fields_of(resource.example)}
    unknown = fields - NOT_PERSONAL - named
    assert unknown == set(), "docs/security.md: name the field and say what deletes it; or it is NOT_PERSONAL"
    assert (NOT_PERSONAL | named) - fields == set()


def fields_of(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        yield from value.__struct_fields__
        for field in value.__struct_fields__:
            yield from fields_of(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from fields_of(item)


def fields_in(node: ast.AST) -> Iterator[str]:
    """Yields the texts that are keys of a dictionary."""
    for inner in ast.walk(node):
        match inner:
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                yield name


def logged(tree: ast.Module) -> Iterator[str]:
    """Yields the fields of the log lines of a module, also those that a variable or a function of it holds."""
    holders = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
            for keyword in node.keywords:
                if keyword.arg == "extra":
                    yield from fields_in(keyword.value)
                    holders |= {inner.id for inner in ast.walk(keyword.value) if isinstance(inner, ast.Name)}
                    holders |= {inner.attr for inner in ast.walk(keyword.value) if isinstance(inner, ast.Attribute)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "defect.report":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                held = any(isinstance(part, ast.Name) and part.id in holders for part in ast.walk(target))
            case ast.FunctionDef(name=name):
                held = name in holders
            case _:
                held = False
        if held:
            yield from fields_in(node)


def test_every_field_of_a_log_line_that_holds_an_id_has_a_row() -> None:
    folders = ("api", "leadview", "operate", "projector", "runtime")
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    fields = {field for path in modules for field in logged(ast.parse(path.read_text("utf-8")))}
    fields |= {field.name for field in msgspec.structs.fields(Act)}
    assert {"request_id", "organization", "trace_id", "job", "record"} <= fields
    unknown = fields - HARMLESS - set(rows("Logs"))
    assert unknown == set(), "docs/security.md: say what the field holds; or it is HARMLESS"
    assert HARMLESS - fields == set()
