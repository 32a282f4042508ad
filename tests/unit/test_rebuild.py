"""What a rebuild costs, what prevents it, how far it is, and when it yields; what differs between documents, and the
report of it.
"""

import io

import pytest
from rich.console import Console

from operate.commands import rebuild
from operate.commands.verify import say_unread, show_report
from projector.kafka.topics import Retention, Topic
from projector.ledger.control import ControlRecord
from projector.line.pace import Pacer
from projector.record import Partition
from projector.redis.store import Memory, Store
from projector.verify.report import Difference, Report, Unread
from projector.verify.stored import StoredDocument, differing_fields
from projector.words import duration
from schemas.settings import ProjectorSettings
from tests.harness import control, crm

LEADS = Partition("crm.leads", 0)
MIB = 1_048_576


@pytest.mark.parametrize(
    ("writing", "limit", "expected"),
    [
        pytest.param((1,), 100 * MIB, (30, 60, "Redis's maxmemory"), id="as much as there is"),
        pytest.param((1, 2), 100 * MIB, (15, 60, "Redis's maxmemory"), id="as much as one of two"),
        pytest.param((1,), 0, (30, 150, "the machine's memory"), id="no bound in Redis"),
    ],
)
def test_rebuild_needs_the_memory_of_a_generation(
    writing: tuple[int, ...], limit: int, expected: tuple[int, int, str]
) -> None:
    memory = Memory(40 * MIB, limit, "noeviction", at_start=10 * MIB, resident=50 * MIB, machine=200 * MIB)
    needed, free, bound = rebuild._memory([memory], control.state_of(1, *writing))
    assert (needed // MIB, free // MIB, bound) == expected


@pytest.mark.parametrize(
    ("kept", "is_problem"),
    [
        pytest.param(None, True, id="there is no such topic"),
        pytest.param(Retention("compact", 604_800_000, -1), False, id="compacted"),
        pytest.param(Retention("delete", 604_800_000, -1), True, id="deleted after a week"),
        pytest.param(Retention("compact,delete", 604_800_000, -1), True, id="compacted, and deleted after a week"),
        pytest.param(Retention("delete", -1, 1000), True, id="deleted beyond a size"),
        pytest.param(Retention("delete", -1, -1), False, id="delete without a bound keeps everything"),
    ],
)
def test_topic_that_deletes_records_is_a_problem(kept: Retention | None, is_problem: bool) -> None:
    topic = Topic("crm.leads", kept is not None, True, (LEADS,) if kept else (), (), kept)
    assert bool(rebuild._of_topics([topic])) == is_problem
    assert kept is None or kept.deletes == is_problem


def record(position: int | None) -> ControlRecord:
    return control.record_of(control.state_of(), {} if position is None else {LEADS: position})


@pytest.mark.parametrize(
    ("first", "position", "said"),
    [
        pytest.param(0, 3, [], id="all are there"),
        pytest.param(5, 5, ["begins at offset 5"], id="the first ones are gone"),
        pytest.param(5, None, ["begins at offset 5"], id="nothing was applied yet"),
        pytest.param(5, 3, ["begins at offset 5", "lost the offsets 3 to 4"], id="before they were read"),
    ],
)
def test_records_that_are_gone_are_named_before_a_rebuild(first: int, position: int | None, said: list[str]) -> None:
    found = rebuild._lost(record(position), {LEADS: (first, 9)})
    assert [words in each for words, each in zip(said, found, strict=True)] == [True] * len(said)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.25, "1.2 s"), (89, "89 s"), (600, "10 min"), (5399, "90 min"), (7200, "2 h"), (864000, "10 d")],
)
def test_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_pause_grows_while_the_api_is_slow_and_shrinks_after_it() -> None:
    pacer = Pacer.of_replay(Store(ProjectorSettings()), 0.010)  # it reads nothing here
    pauses = []
    for slowest in (0.005, 0.010, 0.011, 0.5, 0.5, *[1.0] * 6):
        pacer._adapt(slowest)
        pauses.append(pacer.pause)
    assert (pauses[:5], pauses[-1]) == ([0, 0, 0.01, 0.02, 0.04], 0.5), "it never stops completely"
    for _ in range(30):
        pacer._adapt(0.001)
    assert pacer.pause == 0


def test_small_batches_while_the_api_answers() -> None:
    store = Store(ProjectorSettings())  # it reads nothing here
    pacer, never = Pacer.of_replay(store, 0.010), Pacer.of_replay(store, 0)
    assert (pacer.yields, never.yields) == (True, False), "it is unknown yet whether an API worker answers requests"
    yields = []
    for slowest in (0.0, 0.0005, 0.0, 0.0):
        pacer._answered_at -= 4.0
        pacer._adapt(slowest)
        yields.append(pacer.yields)
    assert yields == [True, True, True, False]


TAGS = b"123456123456"


@pytest.mark.parametrize(
    ("expected", "found", "fields"),
    [
        pytest.param(StoredDocument(1, b'{"a":1}', TAGS), StoredDocument(1, b'{"a":1}', TAGS), [], id="nothing"),
        pytest.param(StoredDocument(), StoredDocument(), [], id="no document on both sides"),
        pytest.param(StoredDocument(1, b'{"a":1}', TAGS), StoredDocument(), ["missing"], id="missing"),
        pytest.param(StoredDocument(), StoredDocument(1, b'{"a":1}', TAGS), ["extra"], id="extra"),
        pytest.param(StoredDocument(1, b"{}", TAGS), StoredDocument(2, b"{}", TAGS), ["version"], id="version"),
        pytest.param(StoredDocument(1, b"{}", TAGS), StoredDocument(1, b"{}", bytes(12)), ["etag"], id="etag"),
        pytest.param(
            StoredDocument(1, b'{"a":1,"b":2,"c":3}'),
            StoredDocument(2, b'{"a":1,"b":3,"d":3}'),
            ["b", "c", "d"],
            id="fields",
        ),
        pytest.param(StoredDocument(1, b'{"a":1.50}'), StoredDocument(1, b'{"a":1.5}'), ["bytes"], id="digits"),
        pytest.param(StoredDocument(1, b'{"a":1}'), StoredDocument(1, b'{"a":'), ["unreadable"], id="no JSON"),
        pytest.param(StoredDocument(1, b'{"a":1}'), StoredDocument(1, b'{"a":"\xff"}'), ["unreadable"], id="no UTF-8"),
        pytest.param(StoredDocument(1, b'{"a":1}'), StoredDocument(1, b"7"), ["unreadable"], id="no object"),
    ],
)
def test_documents_that_differ_name_their_fields(
    expected: StoredDocument, found: StoredDocument, fields: list[str]
) -> None:
    assert list(differing_fields(expected, found)) == fields


def difference(number: int, *fields: str, kind: str = "leads") -> Difference:
    return Difference(kind, crm.ORGANIZATION, crm.uuid(number), fields)


def full_report() -> Report:
    found = Report("generation 2 against generation 1", {"leads": 12_345, "contacts": 678})
    allowed = frozenset({"leads.quote_total", "leads.tags"})
    for each in (
        difference(1, "missing"),
        difference(2, "extra", kind="contacts"),
        difference(3, "stage", "tags"),
        difference(4, "quote_total", "tags"),
        difference(4, "quote_total", "tags"),
        difference(5, "tags"),
    ):
        found.add(each, allowed)
    return found


def test_report_counts_differences_by_kind_and_field() -> None:
    found = full_report()
    assert (found.missing, found.extra, found.changed, found.allowed, found.differences) == (1, 1, 1, 2, 3)
    assert found.by_field == {
        "leads.missing": 1,
        "contacts.extra": 1,
        "leads.stage": 1,
        "leads.tags": 3,
        "leads.quote_total": 1,
    }
    assert [found.passes(threshold) for threshold in (2, 3)] == [False, True]
    listed = {"of", "checked", "differences", "examples", "notes", "by_field"}
    assert found.to_json().keys() & {*listed, "seen"} == listed
    for number in range(6, 56):
        found.add(difference(number, "stage"), frozenset())
    assert (len(found.examples), found.changed) == (10, 51), "ten examples are kept"


def text_of(report: Report) -> str:
    output = io.StringIO()
    show_report(report, Console(file=output, width=120, highlight=False))
    return output.getvalue()


def test_what_a_report_leaves_out_is_said() -> None:
    found = Report("generation 1 against the topics", {"leads": 12})
    for number in range(11):
        found.add(difference(number, "missing"), frozenset())
    assert "  and 1 more\n" in text_of(found)
    changing = Report("generation 1 against the topics", {"leads": 12})
    changing.leave(1, "documents")
    assert "no difference in the rest" in text_of(changing)
    seen = Report("generation 1 against the topics", {"leads": 12}, seen=set(range(999_999)))
    for number in range(2):
        seen.add(difference(number, "missing"), frozenset())
    assert seen.notes == ["after 1,000,000 that differ, one may be counted twice, and no cause is named"]


def test_many_open_transactions_are_named_up_to_three() -> None:
    held = [Unread("crm.leads", number, 5, 2, "") for number in range(4)]
    said = say_unread(held)
    assert "crm.leads:2 since an unknown time and 1 more, and 8 records behind it" in said


def test_printed_report_has_counts_differences_and_notes() -> None:
    found = full_report()
    found.notes.append("a note")
    text = text_of(found)
    for said in (
        "12,345 leads, 678 contacts",
        "note a note",
        "3 differ: 1 missing, 1 extra, 1 changed; allowed 2",
        f"leads {crm.ORGANIZATION} {crm.uuid(3)}: stage, tags",
    ):
        assert said in text
    assert text.index("leads.tags") < text.index("leads.stage"), "the most frequent field first"
