"""Tables and lists in pages and in files of `deploy`, derived from the declarations in `schemas`."""

import ast
import inspect
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import orjson
from msgspec import Meta
from msgspec.structs import fields

from docs.generate.versions import VERSIONS
from schemas import limits, metrics
from schemas.metrics import Metric
from schemas.resources import ACCESS_KINDS, AS_SPECIFIED, LEAD, ROOT
from schemas.settings import ApiSettings, ProjectorSettings, variable

_PREFIX = ProjectorSettings().topic_prefix
TOPICS = tuple(kind.topic for kind in (*AS_SPECIFIED, *ACCESS_KINDS))
"""Without their prefix, in the order in which people read them."""
# Comments that are true for each topic stand above the first one.
_RESOURCE = """\
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata:
  name: {name}
spec:
  partitions: 6
  replicas: 3
  config:
    cleanup.policy: compact
    min.insync.replicas: 2
    delete.retention.ms: 604800000
    max.message.bytes: 1310720"""
_RIGHT = """\
      - resource: {{type: topic, name: {name}}}
        operations: [Read, Describe, DescribeConfigs]"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown. The cells are Markdown."""
    head = list(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def pretty(value: Any) -> str:
    """Returns JSON with a line for each field."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def all_resources() -> str:
    """Returns `leads and contacts`; with a third resource `leads, contacts and tasks`."""
    *others, last = (resource.topic for resource in AS_SPECIFIED)
    return f"{', '.join(others)} and {last}"


def of_resources() -> str:
    """Returns what is served, and where, with the default prefix of the topics."""
    rows = (
        (
            resource.noun,
            f"`{_PREFIX}{resource.topic}`",
            f"`GET {ROOT}/{resource.topic}/{{id}}`",
            resource.summary,
        )
        for resource in AS_SPECIFIED
    )
    return table(("resource", "topic", "endpoint", "what the records are"), rows)


def lead() -> str:
    """Returns the lead of the sandbox in which every field has a value, as a block of Markdown."""
    return f"```json\n{pretty(orjson.loads(msgspec.json.encode(LEAD.example)))}```"


def of_limits() -> str:
    """Returns every limit of `schemas.limits`, with the text below it there."""
    rows = []
    for name, meaning in texts_below(ast.parse(inspect.getsource(limits)).body).items():
        unit = " bytes" if name.endswith("_BYTES") else ""
        rows.append((meaning, f"{getattr(limits, name):,}{unit}"))
    return table(("what", "limit"), rows)


def texts_below(body: list[ast.stmt]) -> dict[str, str]:
    """Returns the text below each name that is assigned or declared in a module or a class, by the name."""
    found = {}
    for declared, text in pairwise(body):
        match declared, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                found[name] = " ".join(meaning.split())
    return found


def of_metrics() -> dict[str, str]:
    """Returns the table of each program's metrics, by its name in the page."""
    return {
        "build": _metrics([metrics.BUILD]),
        "projector": _metrics(metrics.PROJECTOR),
        "api": _metrics(metrics.API),
        "verify": _metrics(metrics.VERIFY),
    }


def _metrics(declared: Iterable[Metric]) -> str:
    rows = []
    for metric in declared:
        name = metric.name if metric.type == "histogram" else metric.exported[0]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append((f"`{name}`", metric.type, labels, metric.help))
    return table(("metric", "type", "labels", "what it says"), rows)


class Setting(NamedTuple):
    """A setting as its table shows it. The cells are Markdown."""

    name: str
    default: str
    meaning: str


def settings() -> dict[str, list[Setting]]:
    """Returns the settings by the name of their table: those of both processes, and those that only one of them has."""
    api, projector = (list(_settings(process)) for process in (ApiSettings, ProjectorSettings))
    shared = [row for row in api if row in projector]
    own = {"api": api, "projector": projector}
    return {"both": shared, **{name: [row for row in rows if row not in shared] for name, rows in own.items()}}


def of_settings() -> dict[str, str]:
    """Returns the tables of settings, by their names in the page."""
    return {name: table(("Setting", "Default", "Meaning"), rows) for name, rows in settings().items()}


def _settings(process: type[Any]) -> Iterator[Setting]:
    hints = get_type_hints(process, include_extras=True)
    for field in fields(process):
        default = "none" if field.default is None else f"`{field.default}`"
        notes = [note for note in get_args(hints[field.name]) if isinstance(note, Meta)]
        # The last one is that of the field: a type alias has its own before it.
        [*_, meaning] = (note.description for note in notes if note.description)
        yield Setting(f"`{variable(field.name)}`", default, meaning)


def strimzi_topics() -> str:
    """Returns a KafkaTopic for each topic, for deploy/kubernetes/strimzi."""
    return "\n".join(_RESOURCE.format(name=f"{_PREFIX}{topic}") for topic in TOPICS)


def strimzi_rights() -> str:
    """Returns the rights of the projectors' KafkaUser to read the topics."""
    return "\n".join(_RIGHT.format(name=f"{_PREFIX}{topic}") for topic in TOPICS)


def of_versions() -> str:
    """The versions of others that are supported."""
    programs = dict.fromkeys(version.program for version in VERSIONS)
    numbers = {name: [version.number for version in VERSIONS if version.program == name] for name in programs}
    return table(("program", "versions"), ((name, ", ".join(numbers[name])) for name in programs))


def loop_over_topics() -> str:
    """Returns the head of the loop of compose.yaml that creates the topics, in the language of the shell."""
    return f"        for topic in {' '.join(TOPICS)}; do"


def sentence_of_topics() -> str:
    """Returns a sentence in Markdown that names all topics."""
    names = [f"`{_PREFIX}{topic}`" for topic in TOPICS]
    return f"There is a topic for each kind of event: {', '.join(names[:-1])} and {names[-1]}."
