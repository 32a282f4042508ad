"""`status --history`: who did what, and what came of it."""

import re
from pathlib import Path

import orjson
import pytest

from projector.commands.arguments import parse
from projector.commands.operator import act_of
from projector.ledger import history
from projector.ledger.history import Act
from schemas import api_keys, names
from schemas.version import VERSION
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.waiting import wait_until


@pytest.mark.parametrize(
    ("words", "act"),
    [
        pytest.param("promote --force", "promote --force", id="promote"),
        pytest.param("rollback", "rollback", id="rollback"),
        pytest.param("drop --by=ops 2", "drop 2", id="who did it is no argument"),
        pytest.param("rebuild --organization " + crm.ORGANIZATION, None, id="rebuild"),
        pytest.param("dead-letters accept crm.leads:0:0 --note test", None, id="accept"),
        pytest.param("dead-letters redrive", None, id="redrive"),
        pytest.param("dead-letters drop --all", None, id="drop dead letters"),
        pytest.param("rebuild --check", "", id="a check changes nothing"),
        pytest.param("dead-letters list", "", id="a list changes nothing"),
        pytest.param("verify --next", "", id="a comparison changes nothing"),
    ],
)
def test_what_is_an_act(words: str, act: str | None) -> None:
    """By default all words."""
    found = act_of(parse(words.split()), words.split())
    assert " ".join((found.verb, *found.arguments) if found else ()) == (words if act is None else act)


def test_each_act_is_remembered(leadview: Leadview, tmp_path: Path) -> None:
    """Also one that was refused, and in the log of a projector."""
    leadview.publish(crm.organization(), crm.lead(), partition=0)
    leadview.serve(log="projector")
    assert "nobody has done anything yet" in leadview.run("status", "--history")
    assert leadview.run("promote", "--by", "Ada Lovelace", "--force").status == 1
    assert leadview.run("rebuild", "--promote", "--max-latency", "0").status == 0
    found = orjson.loads(leadview.run("status", "--history", "--json").stdout)
    me = history.operator()
    assert [(act["verb"], act["arguments"], act["outcome"], act["by"]) for act in reversed(found)] == [
        ("promote", ["--force"], "refused", "Ada Lovelace"),
        ("rebuild", ["--promote", "--max-latency", "0"], "begun", me),
        ("rebuild", ["--promote", "--max-latency", "0"], "done", me),
    ]
    printed = leadview.run("status", "--history").stdout
    assert re.search(rf"20\d\d-.*Z +promote --force +refused: .+ Ada Lovelace +{re.escape(VERSION)}", printed), printed
    log = tmp_path / "projector.log"
    wait_until(lambda: log.read_text().count("an operator has acted") == 3, "the projector has logged each of them")


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
