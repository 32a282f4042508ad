"""What has to be right before a release: one version in every place, a changelog, and nothing that is not committed."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

_HEADING = re.compile(r"^## \[(.+?)\](.*)$", re.MULTILINE)
_COPY = re.compile(r"^COPY (?!--from)(\S+) ", re.MULTILINE)


def version_of(root: Path) -> str:
    """Returns the version in `pyproject.toml`."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def context_of(root: Path) -> list[str]:
    """Returns what the Dockerfile copies from the repository: files and folders."""
    return sorted(set(_COPY.findall((root / "Dockerfile").read_text("utf-8"))))


def problems(root: Path) -> Iterator[str]:
    """Yields why this checkout cannot be released, and what to do."""
    version = version_of(root)
    yield from _versions(root, version)
    yield from _changelog((root / "CHANGELOG.md").read_text("utf-8"), version)
    yield from _context(root)
    yield from _git(root, version)


def _versions(root: Path, version: str) -> Iterator[str]:
    places = (
        ("schemas/version.py", r'^VERSION = "(.+)"'),
        ("compose.yaml", r"image: leadview(?:-sample)?:(\S+)"),
        ("Dockerfile", r'^LABEL org.opencontainers.image.version="(.+?)"'),
        ("deploy/kubernetes/base/kustomization.yaml", r"name: leadview\n +newTag: (\S+)"),
        ("docs/schemas/asyncapi.json", r'\A\{\s*"asyncapi".*?"version": "(.+?)"'),
    )
    for path, pattern in places:
        found = re.findall(pattern, (root / path).read_text("utf-8"), re.MULTILINE | re.DOTALL)
        if not found or set(found) != {version}:
            shown = ", ".join(sorted(set(found))) or "no version"
            yield f"{path} has {shown}, and pyproject.toml has {version}: write the same version in both."
    # The OpenAPI document has the version of the interface, which is not that of the program.
    code = (root / "docs/generate/openapi.py").read_text("utf-8")
    document = json.loads((root / "api/openapi.json").read_text("utf-8"))["info"]["version"]
    if f'VERSION = "{document}"' not in code:
        yield f"api/openapi.json has {document}, and the code another version: run `python -m docs.generate`."


def _changelog(text: str, version: str) -> Iterator[str]:
    parts = _HEADING.split(text)  # text, name, date, text, name, date, text, ...
    sections = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    if sections and sections[0][0] == "Unreleased":
        if sections.pop(0)[2].strip():
            yield "CHANGELOG.md has changes under [Unreleased]: move them to the section of the version to release."
    else:
        yield "CHANGELOG.md does not begin with a section [Unreleased]: add an empty one."
    newest, date, _ = sections[0] if sections else ("no version", "", "")
    if newest != version:
        yield f"CHANGELOG.md has {newest} as the newest version, not {version}: write a section for it."
    elif not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", date):
        yield f"CHANGELOG.md has no date for {version}: write the heading as `## [{version}] - 2026-12-31`."


def _context(root: Path) -> Iterator[str]:
    kept = set((root / ".dockerignore").read_text("utf-8").splitlines())
    for path in context_of(root):
        if f"!{path}" not in kept:
            yield f".dockerignore excludes {path}, and the Dockerfile copies it: add the line !{path}."


def _git(root: Path, version: str) -> Iterator[str]:
    changed = _ask_git(root, "status", "--porcelain").splitlines()
    if changed:
        yield f"{len(changed)} files are not committed, such as {changed[0][3:]}: commit or remove them."
    tagged = _ask_git(root, "tag", "--list", f"v{version}")
    if tagged and _ask_git(root, "rev-parse", f"v{version}^{{commit}}") != _ask_git(root, "rev-parse", "HEAD"):
        yield f"the tag v{version} is on another commit, so {version} was released before: raise the version."


def _ask_git(root: Path, *words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.rstrip()
