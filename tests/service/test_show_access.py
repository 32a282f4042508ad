"""`show key` and `show organization` name the answer that the API gives, and never print a key."""

from collections.abc import Iterator

import msgspec
import pytest

from projector.commands import show_access
from projector.commands.refusal import Refusal
from schemas import names, resources
from schemas.api_keys import key_hash, mint
from schemas.settings import ApiSettings
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, patient, running_api
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection

KEY = mint(crm.ORGANIZATION, "7" * 30)
HASH = key_hash(KEY)
OWNER = names.organization(crm.ORGANIZATION)
ONE_REQUEST = {"key": {"quota": 1, "window_seconds": 36_000}}
ORGANIZATION = crm.organization(1)
API_KEY = crm.api_key(1, hash=HASH)


@pytest.fixture
def api(projection: Projection) -> Iterator[ApiServer]:
    with running_api(patient(projection.settings.redis_url)) as api:
        yield api


@pytest.mark.parametrize(
    ("messages", "row", "said"),
    [
        pytest.param([ORGANIZATION, API_KEY], None, "", id="accepted"),
        pytest.param([ORGANIZATION], "5", "No key with this hash", id="unknown"),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.api_key(2, hash=HASH, status="revoked")], "5", crm.API_KEY, id="revoked"
        ),
        pytest.param(
            [ORGANIZATION, crm.api_key(1, hash=HASH, expires_at=crm.at(0))], "5", "2026-01-01T00:00:00Z", id="expired"
        ),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.api_key(1, id=crm.uuid(0xF2), hash=HASH, status="revoked")],
            "5",
            crm.uuid(0xF2),
            id="revoked by another API key with the same hash",
        ),
        pytest.param([ORGANIZATION, API_KEY, crm.deleted(resources.API_KEY, 2)], "5", "deleted", id="deleted"),
        pytest.param([API_KEY], "6", "No event of this organization", id="an organization never heard of"),
        pytest.param([crm.organization(1, api_access=False), API_KEY], "6", "switches API access off", id="off"),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.deleted(resources.ORGANIZATION, 2)],
            "6",
            "organization is deleted",
            id="deleted, and not erased yet",
        ),
        pytest.param(
            [ORGANIZATION, crm.deleted(resources.ORGANIZATION, 2), crm.organization(3), API_KEY],
            "-",
            "recreated",
            id="recreated",
        ),
        pytest.param([crm.organization(1, rate_limits=ONE_REQUEST), API_KEY], "7", "limit of the key", id="used up"),
    ],
)
async def test_it_says_what_the_api_answers(
    projection: Projection, api: ApiServer, messages: list[crm.Message], row: str | None, said: str
) -> None:
    for message in (*messages, crm.lead(1)):
        await projection.apply(message.record())
    if row == "7":
        assert api.get(LEADS + crm.LEAD, key=KEY).status == 200
    answer = api.get(LEADS + crm.LEAD, key=KEY)
    settings = ApiSettings()
    place = show_access.parse_key(f"Bearer {KEY}\n")
    assert isinstance(place, show_access.Place)
    found = await show_access.read_key(projection.store, settings, place)
    _assert_equal(found.refusal, answer.status, "" if answer.status == 200 else answer.error, row, said)
    organization = await show_access.read_organization(projection.store, settings, crm.ORGANIZATION)
    if row in ("6", "-"):
        assert organization.refusal == found.refusal
    else:
        assert organization.refusal is None
    for places in (
        await show_access.find(projection.store, key_hash=HASH),
        await show_access.find(projection.store, key_id=crm.API_KEY),
    ):
        for other in places:
            by = await show_access.read_key(projection.store, settings, other)
            assert (by.refusal and by.refusal.row, by.hash) in ((row, HASH), (row, None))


def _assert_equal(refusal: Refusal | None, status: int, error: str, row: str | None, said: str) -> None:
    assert (refusal.status if refusal else 200, refusal.error if refusal else "") == (status, error)
    assert (refusal and refusal.row) == row
    assert said in (refusal.why if refusal else "")


async def test_nothing_is_found_where_nothing_is(projection: Projection) -> None:
    await projection.apply(ORGANIZATION.record(), API_KEY.record())
    assert await show_access.find(projection.store, key_hash="0" * 64) == []
    assert await show_access.find(projection.store, key_id=crm.LEAD) == []


@pytest.mark.long
@pytest.mark.apache
def test_no_command_prints_a_key(leadview: Leadview) -> None:
    bad = crm.Message(resources.API_KEY, API_KEY.key, b"no JSON")
    leadview.publish(ORGANIZATION, API_KEY, bad)
    leadview.start("run")
    leadview.wait_until_served()
    other = mint(crm.OTHER_ORGANIZATION, "8" * 30)
    for words, stdin, status, parts in (
        (["-"], f"{KEY}\n", 0, ["accepted", HASH, crm.API_KEY, crm.ORGANIZATION, "API access  on", "100 left"]),
        ([HASH], None, 0, ["accepted", HASH, "dead letter", "api-keys:"]),
        ([crm.API_KEY.upper()], None, 0, ["accepted", HASH]),
        (["-"], other, 0, ["refused with 401 invalid_api_key (row 5", "No key with this hash", key_hash(other)]),
        (["-"], KEY[:-1] + "x", 0, ["refused with 401 invalid_api_key (row 4", "checksum"]),
        (["-"], "", 0, ["refused with 401 missing_api_key (row 3"]),
        ([crm.LEAD], None, 0, ["refused with 401 invalid_api_key (row 5"]),
        ([KEY], None, 2, ["`show key -` reads it from standard input"]),
        (["Bearer", KEY], None, 2, ["`show key -` reads it from standard input"]),
        ([HASH, HASH], None, 2, ["name one key"]),
    ):
        done = leadview.run("show", "key", *words, stdin=stdin)
        assert done.status == status, done.output
        for part in parts:
            assert part in done, (words, part, done.output)
        assert not any(secret in done for secret in (KEY[8:], KEY[:-1], other)), done.output
    done = leadview.run("show", "organization", KEY)
    assert done.status == 2
    assert KEY not in done
    done = leadview.run("show", "organization", crm.ORGANIZATION)
    assert "accepted: a request with a valid key" in done
    assert "refused with 403 api_access_disabled" in leadview.run("show", "organization", crm.OTHER_ORGANIZATION)
    assert "not served: every key of its organization gets 403" in leadview.run(
        "show", "lead", crm.OTHER_ORGANIZATION, crm.LEAD
    )
    assert "not served" not in leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD)
    [found] = msgspec.json.decode(leadview.run("show", "key", "-", "--json", stdin=KEY).stdout)
    assert (found["hash"], found["refusal"], found["api_keys"][0]["status"]) == (HASH, None, "active")
