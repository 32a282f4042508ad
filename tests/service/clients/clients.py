"""The clients that `make clients` generates from the OpenAPI document, compiles and runs.

Each language has one program that asks what a tool asks (`flow`, and `UseClient.java`), and for each generator a few
lines that call its client. All clients have to print the same lines.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent
BUILD = ROOT / "build" / "clients"
DOCUMENT = ROOT / "api" / "openapi.json"
EXACT = BUILD / "exact.json"
"""The document as docs/reading.md changes it for clients that read money exactly."""

_PYTHON = BUILD / "python"
_GO = BUILD / "go"
_TYPESCRIPT = BUILD / "typescript"
_JAVA = BUILD / "java"

Command = Sequence[str | Path]


class Client(NamedTuple):
    """`generate` is run in this folder, and then `program`, whose only argument says what to ask."""

    language: str
    folder: Path
    generate: Sequence[Command]
    program: Command
    variables: Mapping[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}


def _openapi_generator(
    version: str, language: str, output: str, properties: str = "", document: Path = DOCUMENT
) -> Command:
    return (
        "java",
        "-XX:TieredStopAtLevel=1",  # it ends before optimizing pays
        "-jar",
        BUILD / "generators" / f"openapi-generator-cli-{version}.jar",
        "generate",
        *("--input-spec", document, "--generator-name", language, "--output", output),
        *(
            "--global-property",
            "apis,models,supportingFiles,apiTests=false,modelTests=false,apiDocs=false,modelDocs=false",
        ),
        *(("--additional-properties", properties) if properties else ()),
    )


def _python(version: str) -> Client:
    folder = _PYTHON / version
    return Client(
        "Python",
        folder,
        [_openapi_generator(version, "python", ".")],
        [_PYTHON / "bin" / "python", SOURCES / "python" / "openapi_generator.py"],
        {"PYTHONPATH": str(folder)},
    )


def _java(version: str, *sources: str, document: Path = DOCUMENT) -> Client:
    jars = BUILD / "jars" / "*"
    return Client(
        "Java",
        _JAVA / f"{version}{''.join(sources)}",
        [
            _openapi_generator(version, "java", ".", document=document),
            (
                *("javac", "-J-XX:TieredStopAtLevel=1", "-proc:none", "-nowarn", "-d", "classes"),
                *("-cp", str(jars), "-sourcepath", "src/main/java"),
                *(SOURCES / "java" / name for name in ("UseClient.java", *sources)),
            ),
        ],
        ["java", "-XX:TieredStopAtLevel=1", "-cp", f"classes:{jars}", "UseClient"],
    )


def _go(generator: str, command: Command, *, name: str | None = None) -> Client:
    """Its package is that of its lines, which are copied to where it is made."""
    folder = _GO / (name or generator)
    copy = ("cp", SOURCES / "go" / generator / "use.go", ".")
    return Client("Go", folder, [copy, command, ("go", "build", "-o", "program", ".")], [folder / "program"])


def _go_openapi_generator(version: str) -> Client:
    command = _openapi_generator(version, "go", ".", "packageName=main,withGoMod=false")
    return _go("openapi-generator", command, name=f"openapi-generator-{version}")


def _typescript(program: str, generator: str, *words: str | Path) -> Client:
    binaries = _TYPESCRIPT / "node_modules" / ".bin"
    return Client(
        "TypeScript",
        _TYPESCRIPT,
        [
            (binaries / generator, *words),
            (
                *(binaries / "tsc", f"{program}.ts", "--strict", "--target", "es2022", "--types", "node"),
                *("--module", "commonjs", "--moduleResolution", "node10", "--outDir", "javascript"),
            ),
        ],
        ["node", _TYPESCRIPT / "javascript" / f"{program}.js"],
    )


CLIENTS = {
    "openapi-python-client": Client(
        "Python",
        BUILD,
        [
            (
                *(_PYTHON / "bin" / "openapi-python-client", "generate", "--path", DOCUMENT, "--meta", "none"),
                *("--fail-on-warning", "--config", SOURCES / "python" / "openapi-python-client.yaml"),
                *("--output-path", "leadview_client"),
            )
        ],
        [_PYTHON / "bin" / "python", SOURCES / "python" / "openapi_python_client.py"],
        {"PYTHONPATH": str(BUILD)},
    ),
    "openapi-generator 7.17 (python)": _python("7.17.0"),
    "openapi-generator 7.23 (python)": _python("7.23.0"),
    "@hey-api/openapi-ts": _typescript(
        "hey-api", "openapi-ts", "--input", DOCUMENT, "--output", "generated/hey-api", "--silent"
    ),
    "openapi-typescript with openapi-fetch": _typescript(
        "openapi-fetch", "openapi-typescript", DOCUMENT, "--output", "generated/openapi-typescript.ts"
    ),
    "openapi-generator 7.17 (java)": _java("7.17.0"),
    "openapi-generator 7.23 (java)": _java("7.23.0"),
    "openapi-generator 7.23 (java), with BigDecimal": _java("7.23.0", "Exact.java", document=EXACT),
    "openapi-generator 7.17 (go)": _go_openapi_generator("7.17.0"),
    "openapi-generator 7.23 (go)": _go_openapi_generator("7.23.0"),
    "oapi-codegen": _go(
        "oapi-codegen",
        ("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "main", "-o", "client.go", DOCUMENT),
    ),
    "ogen": _go("ogen", ("go", "tool", "ogen", "--loglevel", "error", "--target", ".", "--package", "main", DOCUMENT)),
}
"""By the name of the generator, as docs/reading.md has it. Left out, because they add no other reader of the document:
openapi-generator's `typescript-fetch` and its other libraries for Java.
"""
