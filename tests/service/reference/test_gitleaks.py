"""gitleaks with the rule for API keys (`docs/examples/gitleaks.toml`) finds those that leaked, and nothing else. `make
lint` installs it. tests/unit/test_api_keys.py has further texts, for the expression alone.
"""

import subprocess
from pathlib import Path

import orjson
import pytest

from docs.generate.key_vectors import vectors

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
GITLEAKS = ROOT / "build" / "reference" / "gitleaks"
RULE = ROOT / "docs" / "examples" / "gitleaks.toml"
FORM_OF_A_KEY = {
    "a line feed at the end",
    "wrong checksum",
    "two characters swapped",
    "upper and lower case swapped",
    "the organization part is 2^128, one more than a UUID can be; right checksum",
}
"""Malformed texts that hold a key, or what only its checksum tells from one."""


def test_gitleaks_finds_keys_and_nothing_else(tmp_path: Path) -> None:
    assert GITLEAKS.exists(), "run `make lint`, which installs gitleaks"
    known = vectors()
    texts = [f'export API_KEY="{vector.key}" # {number}\n' for number, vector in enumerate(known.valid)]
    texts += [row.text for row in known.malformed]
    texts += [known.valid[2].key.upper(), f"{known.valid[2].key}0", known.valid[2].sha256]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.txt").write_text(text, "utf-8")
    report = tmp_path / "found" / "report.json"
    report.parent.mkdir()
    subprocess.run(
        [GITLEAKS, "dir", "--no-banner", "--exit-code", "0", "--config", RULE, "--report-path", report, tmp_path],
        check=True,
        timeout=60,
    )
    found = {Path(leak["File"]).stem: leak["Secret"] for leak in orjson.loads(report.read_bytes())}
    malformed = enumerate(known.malformed, len(known.valid))
    assert found == {f"{number:02}": vector.key for number, vector in enumerate(known.valid)} | {
        f"{number:02}": row.text.strip() for number, row in malformed if row.why in FORM_OF_A_KEY
    }
