"""What only a rebuild changes. A mapping change, from its deployment until the former generation is dropped, under
readers and writers and while programs of both versions run: no error, no step back, and nothing left behind. And
documents as JSON and compressed, side by side: readers see the same bytes and ETags.
"""

from typing import Any

import pytest

from devstack.ports import free_port
from projector import mapping
from schemas import names, resources
from schemas.control import number_of
from tests.chaos.core import key_of, writer_to
from tests.chaos.reader import readers_of
from tests.harness import control, crm, generations, projectors, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer, patient, running_api
from tests.harness.generations import pattern
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import metric
from tests.harness.projection import Projection
from tests.harness.waiting import wait_until

NEXT = projectors.NEXT_MAPPING


@pytest.mark.apache
def test_mapping_change_while_both_versions_run(leadview: Leadview, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is expected in the end follows from the next mapping; the programs are processes of their own.
    monkeypatch.setitem(mapping._DOCUMENTS, resources.LEAD, projectors.lead_document)
    writer = writer_to(leadview, 100, leads=400, contacts=150)
    # The new program never writes this lead in generation 1: it differs, however long the rebuild takes.
    old = leadview.serve(crm.lead(id=crm.uuid(0xFFFF)))
    assert '"rebuild_due": false' in leadview.ask("status", "--json")
    api_of_two = leadview.api(workers=2)
    with api_of_two as api, writer, readers_of(writer, api.port, readers=2):
        port = free_port()
        new = leadview.start("run", command=NEXT, metrics_port=port)
        wait_until(
            lambda: metric(port, "leadview_projector_rebuild_due") == 1,
            "metrics say that a rebuild is due",
        )
        wait_until(lambda: "rebuild due: " in new.log.read_text(), "its log says so as well")
        due = f"rebuild due: this program has mapping version {projectors.NEXT_VERSION}"
        assert due in leadview.ask("status", command=NEXT)

        refused = ("leads.referrer_length", "Not promoted: ", "documents differ, and --threshold is 0")
        leadview.run("rebuild", "--promote", "--max-latency", "0", command=NEXT).ends(1, *refused)
        assert (
            f"was started with mapping version {projectors.NEXT_VERSION}, this program has {mapping.VERSION}"
            in leadview.run("rebuild", "--max-latency", "0")
        )
        shown = leadview.run("show", "lead", crm.ORGANIZATION, crm.uuid(0xFFFF))
        served, _, waiting = shown.stdout.partition("document of generation 2\n")
        assert "document of generation 1 (live)\n" in served
        assert ("referrer_length" in served, "referrer_length" in waiting) == (False, True), shown.output
        wait_until(lambda: "standing by" in old.log.read_text(), "the old program stands by")
        old.kill()
        old = leadview.start("run")
        allowed = ("--allow", "leads.referrer_length")
        leadview.run("promote", *allowed, command=NEXT).ends(0, "0 differ: 0 missing, 0 extra, 0 changed")
        wait_until(lambda: metric(port, "leadview_projector_rebuild_due") == 0, "no rebuild is due any more")
        done = leadview.ask("status", command=NEXT)
        assert ("rebuild due" in done, "former" in done) == (False, True), done.output

        def is_new() -> bool:
            found = api.get(LEADS + crm.uuid(0xFFFF), key=key_of(crm.ORGANIZATION))
            return "referrer_length" in found.json

        wait_until(is_new, "the new generation is served")
        assert "generation 1 is served again instead of 2" in leadview.run("rollback")
        wait_until(lambda: not is_new(), "the former generation is served")
        leadview.run("rollback").ends(0)
        wait_until(is_new, "the new generation is served again")
        leadview.run("drop").ends(0, "generation 1 dropped")
        leadview.wait_until_current()
        assert list(leadview.redis.scan_iter(match=pattern(1))) == [], "though a projector was writing"
        assert "There is no former generation" in leadview.run("rollback")
    leadview.wait_until_current()
    assert leadview.documents(2) == leadview.expected()
    stored.assert_consistent(leadview.redis, 2)


FULL: dict[str, Any] = {"email": "ada@example.org", "custom_fields": {"note": "\u0000 “quoted” \\ \n", "n": 1}}
LEAD_AND_CONTACT = (crm.lead(tags=["vip"], contact_id=crm.CONTACT), crm.contact(**FULL))

ONE_LEAD = ("--organization", crm.ORGANIZATION, "--lead", crm.LEAD)
PATHS: dict[resources.Resource, str] = {resources.LEAD: LEADS + crm.LEAD, resources.CONTACT: CONTACTS + crm.CONTACT}


async def test_the_api_serves_compressed_documents(alone: Projection) -> None:
    alone.store.compresses = True
    await alone.apply(*(message.record() for message in (crm.organization(), crm.api_key(), *LEAD_AND_CONTACT)))
    documents = alone.documents()
    control.write(alone.client)
    with running_api(patient(alone.settings.redis_url)) as api:
        for resource, path in PATHS.items():
            found = api.get(path, key=crm.KEY)
            assert (found.status, found.body) == (200, documents[resource, crm.ORGANIZATION, found.json["id"]])
            assert api.get(path, key=crm.KEY, headers={"If-None-Match": found.headers["etag"]}).status == 304
            assert api.get(path, key=crm.KEY, method="HEAD").headers["content-length"] == str(len(found.body))
            _spoil(alone.client, resource, 1)
            answer = api.get(path, key=crm.KEY)
            assert (answer.status, answer.error) == (500, "internal_error")


@pytest.mark.apache
@pytest.mark.long
def test_rebuild_converts_everything_and_readers_notice_nothing(leadview: Leadview) -> None:
    """Into both forms, as the setting of its program says. What is spoiled is found and repaired in both."""
    leadview.serve(crm.organization(), crm.api_key(), *LEAD_AND_CONTACT)
    with leadview.api() as api:
        before = [_read(api, path) for path in PATHS.values()]
        for generation, compression in ((2, "zstd"), (3, "none")):
            leadview.run("rebuild", "--promote", "--max-latency", "0", compression=compression).ends(0)
            wait_until(lambda: number_of(leadview.state().live) == generation, f"generation {generation} is live")  # noqa: B023
            found = stored.values(leadview.redis, generation).values()
            assert {b'"organization_id"' not in value for value in found} == {compression == "zstd"}
            _spoil(leadview.redis, resources.LEAD, generation)
            [example] = leadview.run("verify", "--json").json["examples"]
            assert (example["id"], example["fields"]) == (crm.LEAD, ["unreadable"])
            leadview.run("rebuild", *ONE_LEAD, compression=compression).ends(0)
            assert [_read(api, path) for path in PATHS.values()] == before
            leadview.run("drop").ends(0)


def _read(api: ApiServer, path: str) -> tuple[int, bytes, str]:
    answer = api.get(path, key=crm.KEY)
    return answer.status, answer.body, answer.headers.get("etag", "")


def _spoil(client: Any, resource: resources.Resource, number: int) -> None:
    id_ = PATHS[resource].rpartition("/")[2]
    name = names.document(resource, names.organization(crm.ORGANIZATION), generations.stored(client, number), id_)
    client.setrange(name, client.strlen(name) - 9, b"\xff" * 9)
