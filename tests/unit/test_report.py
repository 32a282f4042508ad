"""What differs between documents, and the report of it."""

import io

import pytest
from rich.console import Console

from projector.verify import report
from projector.verify.report import Difference, Report
from projector.verify.stored import Document, differing_fields, in_sample
from tests.harness import crm

TAGS = b"123456123456"


@pytest.mark.parametrize(
    ("expected", "found", "fields"),
    [
        pytest.param(Document(1, b'{"a":1}', TAGS), Document(1, b'{"a":1}', TAGS), [], id="nothing"),
        pytest.param(Document(), Document(), [], id="no document on both sides"),
        pytest.param(Document(1, b'{"a":1}', TAGS), Document(), ["missing"], id="missing"),
        pytest.param(Document(), Document(1, b'{"a":1}', TAGS), ["extra"], id="extra"),
        pytest.param(Document(1, b"{}", TAGS), Document(2, b"{}", TAGS), ["version"], id="version"),
        pytest.param(Document(1, b"{}", TAGS), Document(1, b"{}", bytes(12)), ["etag"], id="etag"),
        pytest.param(
            Document(1, b'{"a":1,"b":2,"c":3}'), Document(2, b'{"a":1,"b":3,"d":3}'), ["b", "c", "d"], id="fields"
        ),
        pytest.param(Document(1, b'{"a":1.50}'), Document(1, b'{"a":1.5}'), ["bytes"], id="digits"),
        pytest.param(Document(1, b'{"a":1}'), Document(1, b'{"a":'), ["unreadable"], id="no JSON"),
        pytest.param(Document(1, b'{"a":1}'), Document(1, b'{"a":"\xff"}'), ["unreadable"], id="no UTF-8"),
        pytest.param(Document(1, b'{"a":1}'), Document(1, b"7"), ["unreadable"], id="no object"),
    ],
)
def test_differing_fields(expected: Document, found: Document, fields: list[str]) -> None:
    assert list(differing_fields(expected, found)) == fields


def test_a_sample_is_a_share_and_always_the_same() -> None:
    ids = [f"{number:022}".encode() for number in range(10_000)]
    chosen = {id_ for id_ in ids if in_sample(id_, 0.1)}
    assert 800 < len(chosen) < 1200
    assert chosen < {id_ for id_ in ids if in_sample(id_, 0.5)}
    assert all(in_sample(id_, 1.0) for id_ in ids)


def difference(number: int, *fields: str, kind: str = "leads") -> Difference:
    return Difference(kind, crm.ORGANIZATION, crm.uuid(number), fields)


def full_report() -> Report:
    found = Report("generation 2 against generation 1", {"leads": 12_345, "contacts": 678}, sample=0.25)
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


def test_report_counts() -> None:
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
    assert found.to_json().keys() >= {"of", "checked", "differences", "examples", "notes", "by_field"}
    assert "seen" not in found.to_json()


def test_ten_examples_are_kept() -> None:
    found = Report("x", {})
    for number in range(50):
        found.add(difference(number, "stage"), frozenset())
    assert (len(found.examples), found.changed) == (10, 50)


def test_report_for_people() -> None:
    found = full_report()
    found.notes.append("a note")
    output = io.StringIO()
    report.show(found, Console(file=output, width=120, highlight=False))
    text = output.getvalue()
    assert "12,345 leads, 678 contacts (a sample of 25.00%)" in text
    assert "note a note" in text
    assert "3 differ: 1 missing, 1 extra, 1 changed; allowed 2" in text
    assert f"leads {crm.ORGANIZATION} {crm.uuid(3)}: stage, tags" in text
    assert text.index("leads.tags") < text.index("leads.stage"), "the most frequent field first"
