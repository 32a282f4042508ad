"""`status --history`: who did what, and what came of it."""

import re
from pathlib import Path

import orjson

from projector.ledger import history
from projector.ledger.history import Act
from schemas import api_keys, names
from schemas.version import VERSION
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.waiting import wait_until


def acts(leadview: Leadview) -> list[tuple[str, str, str]]:
    found = orjson.loads(leadview.run("status", "--history", "--json").stdout)
    return [(" ".join((act["verb"], *act["arguments"])), act["outcome"], act["by"]) for act in reversed(found)]


def test_each_act_is_remembered(leadview: Leadview, tmp_path: Path) -> None:
    """Also one that was refused, and in the log of a projector."""
    leadview.publish(crm.organization(), crm.lead(), partition=0)
    leadview.start("run", log="projector")
    leadview.wait_until_served()
    assert "nobody has done anything yet" in leadview.run("status", "--history")
    me = history.operator()
    assert leadview.run("promote", "--by", "Ada Lovelace", "--force").status == 1
    assert leadview.run("rebuild", "--check").status == 0
    assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
    assert leadview.run("rollback").status == 0
    assert leadview.run("drop", "--by=ops", "2").status == 0
    assert leadview.run("rebuild", "--organization", crm.ORGANIZATION).status == 0
    accepted = f"{leadview.prefix}leads:0:0"
    assert leadview.run("dead-letters", "accept", accepted, "--note", "a test").status == 0
    assert leadview.run("dead-letters", "redrive").status == 0, "also if there is nothing to redrive"
    assert leadview.run("dead-letters", "drop", "--all").status == 0
    assert leadview.run("dead-letters", "list").status == 0
    assert acts(leadview) == [
        ("promote --force", "refused", "Ada Lovelace"),
        ("rebuild --promote --max-latency 0", "begun", me),
        ("rebuild --promote --max-latency 0", "done", me),
        ("rollback", "done", me),
        ("drop 2", "done", "ops"),
        (f"rebuild --organization {crm.ORGANIZATION}", "begun", me),
        (f"rebuild --organization {crm.ORGANIZATION}", "done", me),
        (f"dead-letters accept {accepted} --note a test", "done", me),
        ("dead-letters redrive", "done", me),
        ("dead-letters drop --all", "done", me),
    ]
    printed = leadview.run("status", "--history").stdout
    assert re.search(rf"20\d\d-.*Z +promote --force +refused: .+ Ada Lovelace +{re.escape(VERSION)}", printed), printed
    log = tmp_path / "projector.log"
    wait_until(lambda: log.read_text().count("an operator has acted") == 10, "the projector has logged each of them")


async def test_what_is_kept_of_words(projection: Projection) -> None:
    """No key that somebody has pasted, and no more than a part of a long word, whatever its bytes are."""
    key = api_keys.mint(crm.ORGANIZATION)
    await history.note(
        projection.store, Act("drop", [f"x{key}", "\udcff", "y" * 9999], key, "refused", f"{key} is no number")
    )
    await history.note(projection.store, Act("drop", [], "me", "an outcome of a later version"))
    newest, oldest = await history.read(projection.store)
    assert newest.outcome == "an outcome of a later version"
    assert (oldest.arguments, oldest.by) == (["xlv_live_…", "\\udcff", "y" * 500], "lv_live_…")
    assert oldest.reason == "lv_live_…"


async def test_it_is_bounded(projection: Projection) -> None:
    """And what another version wrote in another way is left out."""
    for number in range(history.MOST + 1):
        await history.note(projection.store, Act("drop", [str(number)], "me"))
    await projection.store.ask_one(b"XADD", names.HISTORY, b"MAXLEN", history.MOST, b"*", b"other", b"{")
    found = await history.read(projection.store)
    assert len(found) == history.MOST - 1
    assert [found[0].arguments, found[-1].arguments] == [[str(history.MOST)], ["2"]]
