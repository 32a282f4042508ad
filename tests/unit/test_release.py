"""The checks of `make release`, on a repository that can be released, and with one thing wrong at a time."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.release import constraints, context_of, main, problems, version_of

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
FILES = (
    "pyproject.toml",
    "Dockerfile",
    ".dockerignore",
    "compose.yaml",
    "schemas/version.py",
    "docs/generate/openapi.py",
    "deploy/kubernetes/base/kustomization.yaml",
    *(RELEASED := ("docs/schemas/asyncapi.json", "api/openapi.json")),
)
VERSION = version_of(ROOT)
CHANGELOG = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-12-31\n\nThe first.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What the checks read, as it is here, with the changelog and the contracts of a release."""
    for path in FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / path)
    for path in RELEASED:
        (tmp_path / "docs/released").mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / "docs/released")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(directory: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", *words]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def commit(directory: Path) -> None:
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--allow-empty", "--message=a change")


def test_this_version_is_the_same_in_every_place(repository: Path) -> None:
    assert list(problems(repository)) == []
    assert main(["check"], repository) == 0


@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        ("pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"', "pyproject.toml has 9.9.9"),
        ("schemas/version.py", VERSION, "9.9.9", "schemas/version.py has 9.9.9"),
        ("compose.yaml", f"leadview:{VERSION}", "leadview:9.9.9", "compose.yaml has 0"),
        ("compose.yaml", f"leadview-sample:{VERSION}", "leadview-sample:9.9.9", "9.9.9"),
        ("Dockerfile", f'image.version="{VERSION}"', 'image.version="9.9.9"', "Dockerfile has 9.9.9"),
        ("deploy/kubernetes/base/kustomization.yaml", f"newTag: {VERSION}", "newTag: 9.9.9", "has 9.9.9"),
        ("docs/schemas/asyncapi.json", f'"version": "{VERSION}"', '"version": "9.9.9"', "asyncapi.json has 9.9.9"),
        ("api/openapi.json", '"version": "', '"version": "9', "openapi"),
        ("CHANGELOG.md", f"[{VERSION}]", "[9.9.9]", "a section for it"),
        ("CHANGELOG.md", " - 2026-12-31", "", "no date"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- New.\n", "move them"),
        ("CHANGELOG.md", "## [Unreleased]\n", "", "add an empty one"),
        ("docs/released/asyncapi.json", '"crm.', '"old.', "asyncapi.json: copy it"),
        (".dockerignore", "!api\n", "", "the line !api"),
    ],
)
def test_what_is_wrong_is_named(repository: Path, path: str, old: str, new: str, named: str) -> None:
    text = (repository / path).read_text()
    assert old in text
    (repository / path).write_text(text.replace(old, new, 1))
    commit(repository)
    found = list(problems(repository))
    assert any(named in problem for problem in found), found
    assert main([], repository) == 1
    assert not (repository / "dist").exists()


def test_a_tree_with_changes_is_refused(repository: Path) -> None:
    (repository / "new.txt").touch()
    assert list(problems(repository)) == ["1 files are not committed, such as new.txt: commit or remove them."]


def test_a_version_is_released_once(repository: Path) -> None:
    git(repository, "tag", f"v{VERSION}")
    assert list(problems(repository)) == []
    commit(repository)
    [problem] = problems(repository)
    assert "raise the version" in problem


def test_the_context_of_the_image_exists() -> None:
    assert {"requirements.txt", "api", "projector", "schemas", "leadview"} <= set(context_of(ROOT))
    assert all((ROOT / path).exists() for path in context_of(ROOT))


def test_the_constraints_are_those_of_the_lock() -> None:
    """With the conditions under which a dependency is wanted, and without hashes: the wheel would need one, too."""
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    found = constraints(ROOT)
    assert [line.split()[0] for line in found.splitlines()] == re.findall(r"^[a-z].*?==\S+", lock, re.MULTILINE)
    assert "uvloop" in found
    assert found.count(" ; ") == lock.count(" ; ")
    assert "--hash" not in found


def test_other_words_are_refused() -> None:
    assert main(["publish"]) == 2
