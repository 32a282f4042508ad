"""Who may import whom (design, "Folders"): read from the source, so that an import inside a function counts too."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"api", "bench", "deploy", "devstack", "docs", "leadview", "projector", "schemas", "tests"}


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """All statements of a file that import something."""
    tree = ast.parse(path.read_text("utf-8"), str(path))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in imports(path):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, level=0):
                yield str(module)
            case ast.ImportFrom(module=module, level=level):
                yield ".".join((*package[: len(package) - level + 1], module or ""))


def files(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no package {package}"
    return found


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        pytest.param("schemas", {"schemas"}, id="schemas imports no other package"),
        pytest.param("leadview", {"leadview", "schemas"}, id="what both programs share knows neither of them"),
        pytest.param("projector", {"projector", "schemas", "leadview"}, id="projector never imports api"),
        pytest.param("api", {"api", "schemas", "leadview"}, id="api never imports projector"),
        pytest.param("docs", {"docs", "schemas"}, id="what is generated follows from the contracts"),
    ],
)
def test_a_package_imports_only_what_it_may(package: str, allowed: set[str]) -> None:
    wrong = {path.name: roots(path) & OURS - allowed for path in files(package)}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("package", "library", "modules"),
    [
        pytest.param("projector", "aiokafka", "kafka/", id="aiokafka in the projector"),
        pytest.param("projector", "redis", None, id="no Redis in the projector but through leadview"),
        pytest.param("projector", "hiredis", None, id="no protocol of Redis in the projector but through leadview"),
        pytest.param("leadview", "redis", "redis/access.py", id="where Redis is"),
        pytest.param("leadview", "hiredis", "redis/connection.py", id="the protocol of Redis"),
        pytest.param("api", "redis", None, id="no Redis in the API but through leadview"),
        pytest.param("api", "hiredis", None, id="no protocol of Redis in the API but through leadview"),
        pytest.param("api", "aiokafka", None, id="no Kafka in the API"),
        pytest.param("schemas", "redis", None, id="no Redis in schemas"),
        pytest.param("schemas", "aiokafka", None, id="no Kafka in schemas"),
    ],
)
def test_a_library_is_imported_in_one_place_only(package: str, library: str, modules: str | None) -> None:
    importers = {str(path.relative_to(ROOT / package)) for path in files(package) if library in roots(path)}
    elsewhere = {importer for importer in importers if modules is None or not importer.startswith(modules)}
    assert elsewhere == set()
    assert bool(importers) == (modules is not None), "the table names a module that does not import it any more"


def modules_of(path: Path) -> Iterator[str]:
    """What a file imports, with the names that are imported: `from projector import mapping` is `projector.mapping`."""
    for node in imports(path):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)


@pytest.mark.parametrize("package", ["schemas", "leadview", "api", "projector", "docs"])
def test_nothing_imports_upwards(package: str) -> None:
    """The modules of a package can be put in an order in which each one imports only modules before it."""
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files(package)
    }
    sorter = TopologicalSorter(
        {module: (set(modules_of(path)) & found.keys()) - {module, package} for module, path in found.items()}
    )
    sorter.prepare()  # raises CycleError, which names the circle
