"""`show key` and `show organization` name the answer that the API gives, and never print a key."""

from itertools import product

import pytest

from operate.explain import stored
from operate.explain.stored import AccessCheck, Refusal
from schemas import names, resources
from schemas.api_keys import key_hash, mint
from schemas.settings import ApiSettings
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection

KEY, HASH = crm.KEY, crm.key_hash(1)
OWNER = names.organization(crm.ORGANIZATION)
ONE_REQUEST = {"key": {"quota": 1, "window_seconds": 36_000}}
ORGANIZATION = crm.organization(1)
API_KEY = crm.api_key(1)


@pytest.mark.parametrize(
    ("messages", "check", "subject"),
    [
        pytest.param([ORGANIZATION, API_KEY], None, "", id="accepted"),
        pytest.param([ORGANIZATION], "unknown key", "", id="unknown"),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.api_key(2, status="revoked")],
            "revoked",
            crm.API_KEY,
            id="revoked",
        ),
        pytest.param([ORGANIZATION, crm.api_key(1, expires_at=crm.at(0))], "expired", crm.API_KEY, id="expired"),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.api_key(1, id=crm.uuid(0xF2), status="revoked")],
            "revoked",
            crm.uuid(0xF2),
            id="revoked by another API key with the same hash",
        ),
        pytest.param([ORGANIZATION, API_KEY, crm.deleted(resources.API_KEY, 2)], "unknown key", "", id="deleted"),
        pytest.param([API_KEY], "unknown organization", "", id="an organization never heard of"),
        pytest.param([crm.organization(1, api_access=False), API_KEY], "access off", "", id="off"),
        pytest.param(
            [ORGANIZATION, API_KEY, crm.deleted(resources.ORGANIZATION, 2)],
            "deleted organization",
            "",
            id="deleted, and not erased yet",
        ),
        pytest.param(
            [ORGANIZATION, crm.deleted(resources.ORGANIZATION, 2), crm.organization(3), API_KEY],
            "replaying",
            "",
            id="recreated",
        ),
        pytest.param([crm.organization(1, rate_limits=ONE_REQUEST), API_KEY], "used up", "", id="used up"),
    ],
)
async def test_show_says_of_a_key_what_the_api_answers(
    projection: Projection, served: ApiServer, messages: list[crm.Message], check: AccessCheck | None, subject: str
) -> None:
    for message in (*messages, crm.lead(1)):
        await projection.apply(message.record())
    if check == "used up":
        assert served.get(LEADS + crm.LEAD, key=KEY).status == 200
    answer = served.get(LEADS + crm.LEAD, key=KEY)
    settings = ApiSettings()
    found = await stored.read_key(projection.store, settings, OWNER, key_hash=HASH)
    refusal = found.refusal or Refusal("unknown key")
    said = refusal.answer[1:] if found.refusal else (200, "")
    assert said == (answer.status, "" if answer.status == 200 else answer.error)
    assert (found.refusal and refusal.check, refusal.id) == (check, subject)
    assert (check == "used up") == bool(refusal.bucket and refusal.bucket.scope == "key")
    organization = await stored.read_organization(projection.store, settings, crm.ORGANIZATION)
    assert organization.refusal == (found.refusal if answer.status in (403, 503) else None)
    for asked, slowly in product(({"key_hash": HASH}, {"id": crm.API_KEY}), (False, True)):
        async for owner in stored.search(projection.store, **asked, patient=slowly):
            assert owner == OWNER
            by = await stored.read_key(projection.store, settings, owner, **asked)
            assert (by.refusal and by.refusal.check, by.hash) in ((check, HASH), (check, None))


@pytest.mark.parametrize("slowly", [False, True])
async def test_keys_alone_are_found_without_their_organization(projection: Projection, slowly: bool) -> None:
    async def owners(**asked: str) -> set[bytes]:
        return {owner async for owner in stored.search(projection.store, patient=slowly, **asked)}

    await projection.apply(ORGANIZATION.record(), API_KEY.record(), crm.contact(1).record())
    assert await owners(id=crm.API_KEY) == await owners(key_hash=HASH) == {OWNER}
    assert await owners(key_hash="0" * 64) == await owners(id=crm.CONTACT) == set()


@pytest.mark.long
@pytest.mark.apache
def test_no_command_prints_a_key(leadview: Leadview) -> None:
    leadview.serve(ORGANIZATION, API_KEY, crm.Message(resources.API_KEY, API_KEY.key, b"no JSON"))
    other = mint(crm.OTHER_ORGANIZATION, "8" * 30)
    for words, stdin, status, parts in (
        (["-"], f"{KEY}\n", 0, ["passes all checks", HASH, crm.API_KEY, crm.ORGANIZATION, "API access", "100 left"]),
        ([HASH], "", 0, ["passes all checks", HASH, "dead letter", "api-keys:"]),
        ([crm.API_KEY.upper()], "", 0, ["passes all checks", HASH]),
        (["-"], other, 0, ["401 invalid_api_key (row 5", key_hash(other)]),
        (["-"], KEY[:-1] + "x", 0, ["401 invalid_api_key (row 4", "checksum"]),
        (["-"], "", 0, ["401 missing_api_key (row 3"]),
        ([crm.LEAD], "", 0, ["401 invalid_api_key (row 5"]),
        ([KEY], "", 2, ["`show key -` reads it from standard input"]),
        (["Bearer", KEY], "", 2, ["`show key -` reads it from standard input"]),
        ([HASH, HASH], "", 2, ["name one key"]),
    ):
        done = leadview.run("show", "key", *words, stdin=stdin).ends(status, *parts)
        assert not any(secret in done for secret in (KEY[8:], KEY[:-1], other)), done.output
    assert KEY not in leadview.run("show", "organization", KEY).ends(2)
    leadview.run("show", "organization", crm.ORGANIZATION).ends(0, "passes all checks")
    leadview.run("show", "organization", crm.OTHER_ORGANIZATION).ends(0, "403 api_access_disabled")
    leadview.run("show", "lead", crm.OTHER_ORGANIZATION, crm.LEAD).ends(0, "not served")
    assert "not served" not in leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD)
    [found] = leadview.run("show", "key", "-", "--json", stdin=KEY).json
    assert (found["hash"], found["refusal"], found["api_keys"][0]["status"]) == (HASH, None, "active")
    refused = leadview.run("show", "lead", crm.OTHER_ORGANIZATION, crm.LEAD, "--json").json
    *known, why = (refused["refusal"][name] for name in ("row", "status", "error", "why"))
    assert (known, bool(why)) == (["6", 403, "api_access_disabled"], True)
