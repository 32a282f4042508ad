"""`make release`: checks that this checkout can be released, then builds it into `dist/`. Nothing is published.

    python -m deploy.release check     the checks alone; exit code 1 if there is a problem
    python -m deploy.release           the checks, then the wheel, the context of the image, the SBOM and SHA256SUMS

The wheel and the context are made from the commit, not from the files that lie around.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.release_checks import context_of, problems, version_of

ROOT = Path(__file__).parents[1]
CYCLONEDX = "build/release/bin/cyclonedx-py"


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Returns the exit code: 0, 1 if the checkout cannot be released, 2 if the command line is wrong."""
    if words not in ([], ["check"]):
        print(__doc__, file=sys.stderr)
        return 2
    found = list(problems(root))
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print(f"Not released: {len(found)} problems.", file=sys.stderr)
        return 1
    print(f"{version_of(root)} can be released")
    if not words:
        build(root, root / "dist")
    return 0


def build(root: Path, dist: Path) -> None:
    """Build everything into `dist`, which is emptied first."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    name = f"leadview-{version_of(root)}"
    committed_at = _run(root, "git", "log", "-1", "--format=%ct").strip()
    os.environ["SOURCE_DATE_EPOCH"] = committed_at  # the same commit gives the same files
    _run(root, "git", "archive", f"--output={dist / name}-image.tar.gz", "HEAD", "Dockerfile", ".dockerignore",
         *context_of(root))  # fmt: skip
    with TemporaryDirectory(prefix="leadview-release-") as scratch:
        _run(root, "git", "archive", f"--output={scratch}/source.tar", "HEAD")
        source = Path(scratch) / "source"
        shutil.unpack_archive(f"{scratch}/source.tar", source, filter="data")
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        _run(source, *pip, "--no-deps", "--no-build-isolation", "--wheel-dir", dist, ".")
    sbom = dist / f"{name}.cdx.json"
    _run(root, root / CYCLONEDX, "requirements", "--pyproject", "pyproject.toml", "--output-reproducible",
         "--output-file", sbom, "requirements.txt")  # fmt: skip
    files = sorted(path for path in dist.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (dist / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def _run(directory: Path, *command: str | Path) -> str:
    """Returns what a program prints. Exits with its error output if it fails."""
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
