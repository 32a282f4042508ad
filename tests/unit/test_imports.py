"""Who may import whom (AGENTS.md, "Where things are"), and what is written in one place only: read from the source."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from schemas.resources import KINDS

ROOT = Path(__file__).parents[2]
OURS = {"api", "bench", "deploy", "devstack", "docs", "leadview", "operate", "projector", "runtime", "schemas", "tests"}
PRODUCT = ("api", "leadview", "operate", "projector", "runtime", "schemas")
NAMES = {name for kind in KINDS for name in (kind.noun, kind.topic)}


def files(*packages: str) -> list[Path]:
    found = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    assert found, f"no package {packages}"
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def imported(path: Path) -> frozenset[str]:
    """Full names of what a file imports, also inside functions: modules, and names of them."""
    package, found = path.relative_to(ROOT).parts[:-1], set[str]()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=module, level=level, names=names):
                base = ".".join((*package[: len(package) - level + 1], module or "")) if level else str(module)
                found |= {base, *(f"{base}.{name.name}" for name in names)}
    return frozenset(found)


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        pytest.param("schemas", {"schemas"}, id="schemas imports no other package"),
        pytest.param("runtime", {"runtime", "schemas"}, id="what both programs share knows neither of them"),
        pytest.param("api", {"api", "runtime", "schemas"}, id="api never imports projector"),
        pytest.param("projector", {"projector", "runtime", "schemas"}, id="what runs knows nothing of operators"),
        pytest.param("operate", {"operate", "projector", "runtime", "schemas"}, id="operators use the projector"),
        pytest.param("leadview", {"leadview"}, id="the command imports others only when it is told which"),
        pytest.param("docs", {"docs", "schemas"}, id="what is generated follows from the contracts"),
    ],
)
def test_package_imports_only_what_it_may(package: str, allowed: set[str]) -> None:
    paths = [ROOT / package] if package.endswith(".py") else files(package)
    wrong = {path.name: found for path in paths if (found := roots(path) & OURS - allowed)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("package", "library", "modules"),
    [
        ("projector", "aiokafka", "kafka/"),
        ("projector", "redis", None),
        ("projector", "hiredis", None),
        ("projector", "starlette", None),
        ("operate", "uvicorn", "console/server.py"),
        ("operate", "starlette", "console/"),
        ("operate", "aiokafka", None),
        ("operate", "redis", None),
        ("runtime", "redis", "redis/access.py"),
        ("runtime", "hiredis", "redis/connection.py"),
        ("api", "redis", None),
        ("api", "hiredis", None),
        ("api", "uvicorn", ("server.py", "edge.py")),
        ("api", "prometheus_client", "exporter.py"),
        ("api", "aiokafka", None),
        ("schemas", "redis", None),
        ("schemas", "aiokafka", None),
    ],
)
def test_library_is_imported_in_one_place_only(
    package: str, library: str, modules: str | tuple[str, ...] | None
) -> None:
    importers = {str(path.relative_to(ROOT / package)) for path in files(package) if library in roots(path)}
    elsewhere = {importer for importer in importers if modules is None or not importer.startswith(modules)}
    assert elsewhere == set()
    assert bool(importers) == (modules is not None), "the table names a module that does not import it any more"


def test_the_api_imports_no_private_part_of_uvicorn() -> None:
    private = ("uvicorn._", "uvicorn.protocols")
    assert [path.name for path in files("api") if any(name.startswith(private) for name in imported(path))] == []


@pytest.mark.parametrize("package", [*PRODUCT, "docs"])
def test_modules_of_a_package_import_in_no_circle(package: str) -> None:
    """The modules of a package can be put in an order in which each one imports only modules before it."""
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files(package)
    }
    before = {module: imported(path) & found.keys() - {module, package} for module, path in found.items()}
    TopologicalSorter(before).prepare()  # raises CycleError, which names the circle


ROOMS = ("redis", "kafka", "ledger", "line", "verify", "upkeep", "health")
"""The folders of the projector: each one may import those before it, and the files beside them that import none."""


def test_no_room_of_the_projector_imports_a_later_one() -> None:
    upwards = []
    for floor, room in enumerate((None, *ROOMS)):
        later = ROOMS[floor:]
        paths = files(f"projector/{room}") if room else sorted((ROOT / "projector").glob("*.py"))
        for path in paths:
            rooms = {name.split(".")[1] for name in imported(path) if name.startswith("projector.")}
            if path.name != "run.py":  # starts everything
                upwards += [f"{path.relative_to(ROOT)} -> {other}" for other in rooms.intersection(later)]
    assert upwards == []
    assert {path.parent.name for path in files("projector")} == {"projector", *ROOMS}


def test_contracts_import_no_clock_no_file_and_no_network() -> None:
    """No clock, no files, no network."""
    impure = {"asyncio", "io", "os", "pathlib", "socket", "time", "logging"}
    contracts = "api_keys base62 documents events fields gcra layouts names examples redis_url"
    assert {name: roots(ROOT / f"schemas/{name}.py") & impure for name in contracts.split()} == {
        name: set() for name in contracts.split()
    }


def test_only_as_called_names_a_program() -> None:
    """What is printed to be pasted works only if the program is called like this one (`schemas.words.as_called`)."""
    named = re.compile(r"\b(projector|leadview) (run|rebuild|status|dead-letters|promote|drop|verify)\b")
    for path in files(*PRODUCT):
        documents = {id(node.value) for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and id(node) not in documents)
        assert [node.value for node in texts if isinstance(node.value, str) and named.search(node.value)] == [], path


def sentences(source: ast.Module) -> Iterator[str]:
    """The texts of three words or more that are neither documentation, nor logged, nor the message of an error that is
    raised, nor what a fault says was expected.
    """
    ignored = set[ast.AST]()
    for node in ast.walk(source):
        match node:
            case ast.Expr(value=ast.Constant()):
                ignored.add(node.value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "defect"))):
                ignored |= set(ast.walk(node))
            case ast.Call(func=ast.Name(id="Fault" | "of_header" | "TypeError")):
                ignored |= set(ast.walk(node))
    for node in ast.walk(source):
        match node:
            case ast.Constant(value=str(text)) if node not in ignored and re.search(
                "[A-Za-z]{2,} [a-z]+ [a-z]{2,}", text
            ):
                yield f"line {node.lineno}: {text}"


REASONED = {"Conflict", "Denied", "Refused", "SessionEnded", "Unavailable"}


def reasons_in_words(source: ast.Module) -> Iterator[str]:
    """The errors that are given words, by themselves or as data of a `projector.reason` or a `projector.problem`."""
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and REASONED & {
            name.id for name in ast.walk(node.func) if isinstance(name, ast.Name)
        }:
            parts = [part for value in (*node.args, *node.keywords) for part in ast.walk(value)]
            if any(isinstance(part, ast.Constant) and " " in str(part.value) for part in parts):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def lists_of_kinds(source: ast.Module) -> Iterator[str]:
    """The literal lists, tuples, sets and dictionaries in a source that name two kinds of entity or more."""
    for node in ast.walk(source):
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
                values = {item.value for item in items if isinstance(item, ast.Constant)}
                if len(values & NAMES) > 1:
                    yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("paths", "found_in", "wrong", "advice"),
    [
        pytest.param(
            # What it stores and compares are kinds, so that nothing has to take a sentence apart.
            [
                *files("projector/line"),
                *(ROOT / f"projector/{name}.py" for name in ("change", "dead_letter", "interpret", "record")),
                ROOT / "projector/unknown_fields.py",
            ],
            sentences,
            'x = f"{a} of the last {b} records"; raise BadRecord("the JSON is nested")',
            "give it a kind, and say it in schemas/words.py",
            id="a line makes no words",
        ),
        pytest.param(
            files("projector"),
            reasons_in_words,
            'Refused(f"{a} is gone")\n(Denied if a else Unavailable)(A(b="is away"))\nRefused(A(str(e)))',
            "give it a kind in projector/reason.py, and say it in projector/words.py",
            id="what runs refuses nothing in words",
        ),
        pytest.param(
            # A resource that is added would be missing there.
            files(*PRODUCT, "bench", "devstack"),
            lists_of_kinds,
            "TOPICS = ('leads', 'contacts')\nREAD = {'lead': 1, 'contact': 2}",
            "let it follow the rows of schemas/resources.py (KINDS, RESOURCES, BY_TOPIC)",
            id="no list of resources is a literal",
        ),
    ],
)
def test_source_does_not_say_what_is_written_elsewhere(
    paths: list[Path], found_in: Callable[[ast.Module], Iterator[str]], wrong: str, advice: str
) -> None:
    found = [f"{path.relative_to(ROOT)} {each}" for path in paths for each in found_in(tree(path))]
    assert found == [], advice
    assert len([*found_in(ast.parse(wrong))]) == 2
