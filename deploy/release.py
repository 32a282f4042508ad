"""`make release`: checks that this checkout can be released, then builds it into `dist/`. Nothing is published.

    python -m deploy.release check     the checks alone; exit code 1 if there is a problem
    python -m deploy.release build     the files alone, of a commit that is not to be released
    python -m deploy.release           the checks, then the files

The files are wheel, sdist, the constraints of the tested lock, the context of the image, the image itself if Docker or
Podman runs here, the rendered manifests of Kubernetes, the SBOM and SHA256SUMS.
They are made from the commit, not from the files that lie around; the same commit gives the same wheel and context.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

ROOT = Path(__file__).parents[1]
CYCLONEDX = "build/release/bin/cyclonedx-py"
KUSTOMIZE = "build/kubernetes/bin/kustomize"
_HEADING = re.compile(r"^## \[(.+?)\](.*)$", re.MULTILINE)
# The constraints are without hashes: with them, pip would demand one of the wheel as well.
_PINNED = re.compile(r"^(\S+==.+?) \\$", re.MULTILINE)
_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
_ENGINES = ("docker", "podman")
_BASE = re.compile(r"^ARG PYTHON_IMAGE=(\S+)", re.MULTILINE)
_COPY = re.compile(r"^COPY (?!--from)(\S+) ", re.MULTILINE)


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Returns the exit code: 0, 1 if the checkout cannot be released, 2 if the command line is wrong."""
    if words not in ([], ["check"], ["build"]):
        print(__doc__, file=sys.stderr)
        return 2
    found = list(problems(root)) if words != ["build"] else []
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print(f"Not released: {len(found)} problems.", file=sys.stderr)
        return 1
    if words != ["build"]:
        print(f"{version_of(root)} can be released")
    if words != ["check"]:
        build(root, root / "dist")
    return 0


def build(root: Path, dist: Path) -> None:
    """Build everything into `dist`, which is emptied first."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    name = f"leadview-{version_of(root)}"
    _run(root, "git", "archive", f"--output={dist / name}-image.tar.gz", "HEAD", "Dockerfile", ".dockerignore",
         *context_of(root))  # fmt: skip
    image(root, dist / f"{name}-image.tar.gz", dist / f"{name}-image.docker.tar")
    packages(root, dist)
    (dist / f"{name}-constraints.txt").write_text(constraints(root), "utf-8")
    with _commit(root) as source:
        (dist / "install.yaml").write_text(manifests(source), "utf-8")
    sbom = dist / f"{name}.cdx.json"
    _run(root, root / CYCLONEDX, "requirements", "--pyproject", "pyproject.toml", "--output-reproducible",
         "--output-file", sbom, "requirements.txt")  # fmt: skip
    files = sorted(path for path in dist.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (dist / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def image(root: Path, context: Path, saved: Path) -> None:
    """Build the image from its context, and save it for `docker load`, if there is an engine that has its base.

    The base is the newest one that can be pulled, by its digest; otherwise the one that the engine has.
    """
    base = base_image(root)
    engines = [name for name in _ENGINES if shutil.which(name) and _succeeds(name, "info")]
    pulling = next((name for name in engines if _succeeds(name, "pull", base)), None)
    engine = pulling or next((name for name in engines if _succeeds(name, "image", "inspect", base)), None)
    if engine is None:
        print(f"There is no image: no Docker or Podman runs here that has {base}, or can pull it.")
        return
    if pulling:
        base = _run(root, engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", base).strip()
    tag, commit = f"leadview:{version_of(root)}", _run(root, "git", "rev-parse", "HEAD").strip()
    with TemporaryDirectory(prefix="leadview-image-") as folder:
        _run(root, "tar", "-x", "-f", context, "-C", folder)
        label = f"org.opencontainers.image.revision={commit}"
        _run(root, engine, "build", "--tag", tag, "--label", label, "--build-arg", f"PYTHON_IMAGE={base}", folder)
    _run(root, engine, "save", "--output", saved, tag)


def packages(root: Path, dist: Path) -> None:
    """Build wheel and sdist. The wheel of a commit is the same for everybody who builds it."""
    epoch = {"SOURCE_DATE_EPOCH": _run(root, "git", "log", "-1", "--format=%ct").strip()}
    with _commit(root) as source:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        _run(source, *pip, "--no-deps", "--no-build-isolation", "--wheel-dir", dist, ".", **epoch)
        _run(source, sys.executable, "-c", _SDIST, dist, **epoch)


def manifests(source: Path) -> str:
    """Returns everything of Leadview that runs in a namespace of Kubernetes."""
    return _run(source, ROOT / KUSTOMIZE, "build", "deploy/kubernetes/base")


@contextmanager
def _commit(root: Path) -> Iterator[Path]:
    """Yields a folder with the files of the commit."""
    with TemporaryDirectory(prefix="leadview-release-") as scratch:
        source = Path(scratch) / "source"
        _run(root, "git", "archive", f"--output={scratch}/source.tar", "HEAD")
        source.mkdir()
        _run(source, "tar", "-x", "-f", f"{scratch}/source.tar")
        yield source


def base_image(root: Path) -> str:
    """Returns the image that the Dockerfile builds upon."""
    [found] = _BASE.findall((root / "Dockerfile").read_text("utf-8"))
    return str(found)


def constraints(root: Path) -> str:
    """Returns the tested version of each dependency, as `pip install --constraint` reads them."""
    return "".join(f"{pinned}\n" for pinned in _PINNED.findall((root / "requirements.txt").read_text("utf-8")))


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
    yield from _released(root)
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
    document = orjson.loads((root / "api/openapi.json").read_bytes())["info"]["version"]
    if f'VERSION = "{document}"' not in code:
        yield f"api/openapi.json has {document}, and the code another version: run `.venv/bin/python -m docs.generate`."


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


def _released(root: Path) -> Iterator[str]:
    for path in ("api/openapi.json", "docs/schemas/asyncapi.json"):
        copied = root / "docs" / "released" / Path(path).name
        if copied.read_bytes() != (root / path).read_bytes():
            yield f"{copied.relative_to(root)} is not {path}: copy it, so that later changes are compared with it."


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
    return _run(root, "git", *words).rstrip()


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(directory: Path, *command: str | Path, **environment: str) -> str:
    """Returns what a program prints. Exits with its error output if it fails."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | environment,
        umask=0o022,  # modes of files are in archives
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
