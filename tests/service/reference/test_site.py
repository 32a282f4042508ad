"""The folder that `make docs` writes, in a real Chromium: it needs no network, its links lead somewhere, the box to try
the API works, and so does each sample.
"""

import functools
import http.server
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import orjson
import pytest
from markdown_it import MarkdownIt
from msgspec import Struct

from docs.generate.reference.pages import LANGUAGES, pages
from docs.generate.reference.site import RENDERER, write
from schemas import names
from schemas.api_keys import mint
from schemas.resources import LEAD
from tests.harness.api_server import ApiServer, patient, running_api
from tests.harness.front import Quiet, gateway, serving
from tests.harness.programs import printed_by
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / "build" / "reference"
CHROMIUM = shutil.which("chromium")
WIDTHS = (1200, 400)
PRINTED = {"index": "ACCEPTED", "keys": "404", "rate-limits": "ACCEPTED", "etags": "304", "errors": "not_found"}
"""What each sample of a page prints. Those of the guide are tested with the client that it generates."""


class Service(Struct, frozen=True):
    """A running API with a lead, and what a tool needs to know to read it."""

    api: ApiServer
    caller: Caller
    limited: Caller
    lead: str
    limited_lead: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api.port}"


@pytest.fixture
def service(redis_server: RedisService, records: Records) -> Iterator[Service]:
    with running_api(patient(redis_server.url)) as api:
        caller, limited = records.caller(), records.caller(key_limit=(1, 2), organization_limit=(100, 3600))
        leads = [records.lead(each.organization_id, LEAD.example) for each in (caller, limited)]
        records.client.set(names.AS_OF, 1)
        yield Service(api, caller, limited, *leads)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("site"), [])


def written(folder: Path, servers: list[str]) -> Path:
    assert (PACKAGES / RENDERER).exists(), "run `make docs`, which installs the packages"
    write(folder / "docs", PACKAGES, servers)
    return folder / "docs"


def look(pages: list[str], **order: Any) -> Any:
    assert CHROMIUM, "install Chromium, on Debian with `apt-get install chromium`"
    given = {
        "chromium": CHROMIUM,
        "pages": pages,
        "width": WIDTHS[0],
        "dark": False,
        "offline": False,
        "copies": False,
        "examples": False,
        "words": [],
    } | order
    given = {"screenshots": os.environ.get("LEADVIEW_TEST_SCREENSHOTS"), "key": None, "id": None} | given
    program = ROOT / "docs/generate/reference" / "look.mjs"
    return orjson.loads(printed_by(["node", program, orjson.dumps(given).decode()], directory=PACKAGES))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_every_page_opens_without_a_network(site: Path, width: int, *, dark: bool) -> None:
    opened = [path.as_uri() for path in sorted(site.glob("*.html"))]
    assert len(opened) == len(pages()) + 1
    seen = look(opened, width=width, dark=dark, offline=True)
    elsewhere = [url for url in seen["requests"] if not url.startswith((site.as_uri(), "data:", "blob:"))]
    assert (elsewhere, seen["problems"], seen["wide"]) == ([], [], [])
    assert seen["overlapping"] == []


OPERATIONS = {
    "GET /leads/{id}": "leads/getLead",
    "GET /contacts/{id}": "contacts/getContact",
    "GET /openapi.json": "service/getOpenApi",
    "GET /healthz": "service/getHealth",
    "GET /readyz": "service/getReadiness",
}


def test_the_sidebar_has_every_endpoint_and_the_parts_of_the_page(site: Path) -> None:
    for page in pages():
        text = (site / f"{page.name}.html").read_text("utf-8")
        navigation, _, content = text.partition("</nav>")
        links = dict(re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', navigation))
        assert {links.get(f"api.html#api-1/tag/{slug}"): slug for slug in OPERATIONS.values()} == OPERATIONS
        parts = re.findall(r'<h2 id="([^"]+)"', content)
        assert [link for link in links if link.startswith("#")] == [f"#{part}" for part in parts]


def test_link_to_an_endpoint_opens_with_its_example_and_every_status(site: Path) -> None:
    address = (site / "api.html").as_uri()
    opened = [f"{address}#api-1/tag/{slug}" for slug in OPERATIONS.values()]
    for dark in (False, True):
        seen = look(opened, width=1280, dark=dark, offline=True, examples=True)
        assert (seen["hidden"], seen["problems"], seen["lost"], seen["overlapping"]) == ([], [], [], [])
        lead, contact, *others = seen["examples"]
        assert ('"stage": "ACCEPTED"' in lead, '"custom_fields"' in contact, all(others)) == (True, True, True)


def test_what_is_copied_can_be_pasted(site: Path) -> None:
    """Without prompts, and without what the commands print."""
    seen = look([(site / "reading.html").as_uri(), (site / "sandbox.html").as_uri()], copies=True, offline=True)
    assert seen["problems"] == []
    assert 'make run ARGS="--sandbox"' in seen["copied"]
    assert "python read_lead.py" in seen["copied"]
    blocks = sum((site / f"{name}.html").read_text("utf-8").count('class="sample"') for name in ("reading", "sandbox"))
    assert len(seen["copied"]) == blocks
    assert not [text for text in seen["copied"] if text.startswith("$ ") or not text]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Static(Quiet, http.server.SimpleHTTPRequestHandler): ...

    with serving(functools.partial(Static, directory=folder)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("how", ["file", "static server"])
def test_the_box_to_try_the_api_works(service: Service, tmp_path: Path, how: str) -> None:
    site = written(tmp_path, [service.url])
    with served(site) as address:
        base = site.as_uri() if how == "file" else address
        seen = look([f"{base}/api.html"], key=service.caller.key, id=service.lead)
    assert seen["tried"]["url"] == f"{service.url}/api/v1/ext/leads/{service.lead}"
    assert (seen["tried"]["status"], seen["tried"]["lead"]) == (200, orjson.loads(msgspec.json.encode(LEAD.example)))
    own = (f"{base}/", "data:", "blob:", f"{service.url}/api/v1/ext/leads/{service.lead}")
    assert [url for url in seen["requests"] if not url.startswith(own)] == []
    assert seen["problems"] == []


def test_every_link_leads_somewhere(site: Path) -> None:
    texts = {path.name: path.read_text("utf-8") for path in site.glob("*.html")}
    anchors = {name: set(re.findall(r'<[^>]* id="([^"]+)"', text)) for name, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for target in re.findall(r'<[^>]* (?:href|src)="([^"]+)"', text):
            path, _, anchor = target.partition("#")
            if target == "data:," or "://" in target:
                continue
            if anchor and path == "api.html":
                assert anchor.removeprefix("api-1/tag/") in OPERATIONS.values()  # the renderer makes these parts later
                anchor = ""
            if not (site / (path or page)).is_file() or (anchor and anchor not in anchors[path or page]):
                broken.append((page, target))
    assert broken == []


def test_programs_find_every_page_as_markdown(site: Path) -> None:
    linked = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert {f"{page.name}.md" for page in pages()} < set(linked)
    assert [name for name in linked if not (site / name).is_file()] == []


def samples() -> Iterator[Any]:
    """Each sample that can be run as it is."""
    for page in pages():
        for token in MarkdownIt("commonmark").parse(page.markdown):
            if page.name in PRINTED and token.type == "fence" and token.info in LANGUAGES:
                yield pytest.param(page.name, token.info, token.content, id=f"{page.name}-{token.info}")


def test_the_response_that_is_shown_is_what_the_api_sends(service: Service) -> None:
    [start] = [page.markdown for page in pages() if page.name == "index"]
    [head] = re.findall("```http\n(.+?)```", start, re.DOTALL)
    [lead] = re.findall("```json\n(.+?)```", start, re.DOTALL)
    answer = service.api.get(f"/api/v1/ext/leads/{service.lead}", key=service.caller.key)
    shown = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in head.splitlines()[1:]}
    sent = {name.lower(): value for name, value in answer.headers.items()}
    assert shown.keys() == sent.keys() - {"date"}  # the limits of this service are other ones
    assert all(shown[name] == sent[name] for name in ("content-type", "cache-control", "content-length"))
    assert orjson.loads(lead) == answer.json


FOUND = {
    "Data-As-Of": "Read what you have just changed",
    "sandbox revoked": "Keys",
    "invalid_id": "invalid_id",
    "event_guests": "GET /api/v1/ext/leads/{id}",
    "tombstone": "Versions and deletion",
    "personal data": "Personal data",
    "paging": "Where ids come from",
    "list leads": "Where ids come from",
}
"""Words, and what is among the first results for them."""


@pytest.mark.parametrize("page", ["api", "reading"])
@pytest.mark.parametrize("width", WIDTHS)
def test_one_search_finds_what_any_page_has(site: Path, width: int, page: str) -> None:
    seen = look([(site / f"{page}.html").as_uri()], width=width, offline=True, words=[*FOUND, "wordthatnopagehas"])
    assert seen["problems"] == []
    *found, nothing = seen["found"]
    titles = [[each["title"] for each in results] for results in found]
    assert all(title in results for title, results in zip(FOUND.values(), titles, strict=True)), titles
    assert nothing == []
    opened = look(sorted({each["href"] for results in found for each in results}), width=width, offline=True)
    assert (opened["problems"], opened["lost"]) == ([], [])


def test_readers_learn_whom_to_ask(tmp_path: Path) -> None:
    assert "Ask whoever gave you your key" in (written(tmp_path / "none", []) / "index.html").read_text("utf-8")
    write(tmp_path / "docs", PACKAGES, [], "help@example.com")
    assert 'href="mailto:help@example.com"' in (tmp_path / "docs/index.html").read_text("utf-8")


@pytest.mark.parametrize(("page", "language", "text"), list(samples()))
def test_sample_works_as_it_is_printed(service: Service, tmp_path: Path, page: str, language: str, text: str) -> None:
    limited = service.limited, service.limited_lead
    # The quota of one request is used up, so the sample of rate limits has to wait.
    service.api.get(f"/api/v1/ext/leads/{service.limited_lead}", key=service.limited.key)
    caller, lead = limited if page == "rate-limits" else (service.caller, service.lead)
    assert PRINTED[page] in run(language, text, tmp_path, service.url, caller.key, lead)


@pytest.mark.parametrize(("page", "language", "text"), [one for one in samples() if one.values[0] == "rate-limits"])
def test_sample_repeats_what_a_proxy_could_not_send_on(
    service: Service, tmp_path: Path, page: str, language: str, text: str
) -> None:
    with gateway(service.url, [502, 504]) as url:
        assert PRINTED[page] in run(language, text, tmp_path, url, service.caller.key, service.lead)


@pytest.mark.parametrize(
    ("page", "language", "text"), [one for one in samples() if one.values[0] in ("keys", "errors")]
)
def test_sample_says_that_a_proxy_answered(
    service: Service, tmp_path: Path, page: str, language: str, text: str
) -> None:
    with gateway(service.url, [502], forever=True) as url:
        printed = run(language, text, tmp_path, url, service.caller.key, service.lead)
    assert "502" in printed, page
    assert language == "sh" or "proxy" in printed


@pytest.mark.parametrize(
    ("page", "language", "text"), [one for one in samples() if one.values[0] in ("keys", "errors")]
)
def test_sample_tells_a_wrong_path_from_a_deleted_record(
    service: Service, tmp_path: Path, page: str, language: str, text: str
) -> None:
    """Also on the page of keys, where an unknown record says that the key works."""

    def printed(url: str) -> str:
        return run(language, text, tmp_path, url, service.caller.key, service.lead)

    record, wrong = printed(service.url), printed(f"{service.url}/wrong")
    if page == "errors" and language != "sh":
        assert ("delete your copy" in record, "delete your copy" in wrong) == (True, False)
    else:
        assert ("no such record" in record, "nothing at this path" in wrong) == (True, True)


@pytest.mark.parametrize(("page", "language", "text"), [one for one in samples() if one.values[0] == "keys"])
def test_the_test_of_a_key_tells_a_used_up_limit_from_an_unknown_key(
    redis_server: RedisService, records: Records, tmp_path: Path, page: str, language: str, text: str
) -> None:
    """Both are 429, and only the policies say which it is."""
    settings = patient(redis_server.url, api_unknown_key_limit="1/3600s", api_trusted_proxies="")
    with running_api(settings) as api:
        limited = records.caller(key_limit=(1, 3600), organization_limit=(100, 3600))

        def second(*keys: str) -> str:
            url = f"http://127.0.0.1:{api.port}"
            return [run(language, text, tmp_path, url, key, LEAD.event_example.id) for key in keys][1]

        used_up = second(limited.key, limited.key)
        unknown = second(mint(str(uuid4())), mint(str(uuid4())))
    assert all(word in used_up for word in ("429", "rate_limit_exceeded", "key")), used_up
    assert "address" not in used_up, page
    assert all(word in unknown for word in ("429", "rate_limit_exceeded", "address")), unknown


def run(language: str, text: str, folder: Path, url: str, key: str, lead: str) -> str:
    given = os.environ | {"API": url, "API_KEY": key, "LEAD_ID": lead}
    return printed_by(command(language, text, folder), environment=given)


def command(language: str, text: str, folder: Path) -> list[str]:
    match language:
        case "sh":
            return ["bash", "-euo", "pipefail", "-c", text]
        case "python":
            return [sys.executable, "-c", text]
        case _:
            return ["node", str(compiled(text, folder))]


def compiled(text: str, folder: Path) -> Path:
    source = folder / "sample.mts"
    source.write_text(f"{text}\nexport {{}};\n", "utf-8")
    bin_folder = PACKAGES / "node_modules"
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--types", "node"]
    options += ["--typeRoots", str(bin_folder / "@types")]
    tsc = ["node", str(bin_folder / "typescript" / "bin" / "tsc")]
    printed_by([*tsc, *options, str(source)])
    return source.with_suffix(".mjs")


def test_there_are_samples_in_three_languages() -> None:
    found = {tuple(sample.values[:2]) for sample in samples()}
    assert found == {(page, language) for page in PRINTED for language in ("sh", "python", "typescript")}
