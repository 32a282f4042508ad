"""A mapping change, from its deployment until the former generation is dropped, under readers and writers and while
programs of both versions run: no error, no step back, and nothing left behind.
"""

import pytest

from devstack.ports import free_port
from projector import mapping
from schemas import resources
from tests.chaos.core import key_of, writer_to
from tests.chaos.reader import readers_of
from tests.harness import crm, projectors, stored
from tests.harness.api_server import LEADS
from tests.harness.generations import pattern
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import metric
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache

NEXT = projectors.NEXT_MAPPING


def test_a_mapping_change_while_both_versions_run(leadview: Leadview, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is expected in the end follows from the next mapping; the programs are processes of their own.
    monkeypatch.setitem(mapping._DOCUMENTS, resources.LEAD, projectors.lead_document)
    writer = writer_to(leadview, 100, leads=400, contacts=150)
    # The new program never writes this lead in generation 1: it differs, however long the rebuild takes.
    old = leadview.serve(crm.lead(id=crm.uuid(0xFFFF)))
    assert '"rebuild_due": false' in leadview.run("status", "--json")
    api_of_two = leadview.api(workers=2, api_redis_timeout=PATIENCE_SECONDS)
    with api_of_two as api, writer, readers_of(writer, api.port, readers=2):
        port = free_port()
        new = leadview.start("run", command=NEXT, metrics_port=port)
        wait_until(
            lambda: metric(port, "leadview_projector_rebuild_due") == 1,
            "metrics say that a rebuild is due",
        )
        assert "a rebuild is due" in new.log.read_text()
        done = leadview.run("status", command=NEXT)
        assert f"rebuild due: this program has mapping version {projectors.NEXT_VERSION}" in done

        done = leadview.run("rebuild", "--promote", "--max-latency", "0", command=NEXT)
        assert done.status == 1
        assert "leads.referrer_length" in done
        assert "Not promoted: " in done
        assert "documents differ, and --threshold is 0" in done
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
        done = leadview.run("promote", "--allow", "leads.referrer_length", command=NEXT)
        assert done.status == 0, done.output
        assert "0 differ: 0 missing, 0 extra, 0 changed" in done
        wait_until(lambda: metric(port, "leadview_projector_rebuild_due") == 0, "no rebuild is due any more")
        done = leadview.run("status", command=NEXT)
        assert "rebuild due" not in done
        assert "former" in done

        def is_new() -> bool:
            """Does the API serve the new field?"""
            found = api.get(LEADS + crm.uuid(0xFFFF), key=key_of(crm.ORGANIZATION))
            return "referrer_length" in found.json

        wait_until(is_new, "the new generation is served")
        assert "generation 1 is served again instead of 2" in leadview.run("rollback")
        wait_until(lambda: not is_new(), "the former generation is served")
        assert leadview.run("rollback").status == 0
        wait_until(is_new, "the new generation is served again")
        done = leadview.run("drop")
        assert done.status == 0, done.output
        assert "generation 1 dropped" in done
        leadview.wait_until_current()
        assert list(leadview.redis.scan_iter(match=pattern(1))) == [], "though a projector was writing"
        assert "There is no former generation" in leadview.run("rollback")
    leadview.wait_until_current()
    assert leadview.documents(2) == leadview.expected()
    stored.assert_consistent(leadview.redis, 2)
