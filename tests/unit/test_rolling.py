"""A rolling restart finds what it looks for: each failure that it must not overlook is planted here."""

import pytest

from projector.reference import Entity
from schemas import resources
from tests.harness import crm
from tests.rolling.load import Journal, Versions

LEAD: Entity = (resources.LEAD, crm.ORGANIZATION, crm.LEAD)


def journal(*shown: tuple[Versions, str]) -> Journal:
    """Returns the journal of responses one after the other: what each shows, and its ETag."""
    found = Journal()
    for versions, tag in shown:
        found.shown(LEAD, versions, tag, found.newest(LEAD))
    return found


@pytest.mark.parametrize(
    ("shown", "failure"),
    [
        pytest.param([((1, 1), "a"), ((2, 1), "b"), ((2, 1), "b"), ((2, 3), "c")], "", id="newer ones"),
        pytest.param([((2, 1), "a"), ((1, 1), "b")], "was served after", id="an older lead"),
        pytest.param([((1, 2), "a"), ((1, 1), "b")], "was served after", id="an older contact in the lead"),
        pytest.param([((1, 1), "a"), ((1, 1), "b")], "two ETags", id="another ETag of the same"),
    ],
)
def test_responses_one_after_the_other(shown: list[tuple[Versions, str]], failure: str) -> None:
    failures = journal(*shown).take().failures
    assert [failure in text for text in failures] == [True] * bool(failure)


def test_responses_at_the_same_time_may_come_in_any_order() -> None:
    found = journal(((1, 1), "a"))
    floor = found.newest(LEAD)
    found.shown(LEAD, (3, 1), "c", floor)
    found.shown(LEAD, (2, 1), "b", floor)
    assert found.take().failures == []
    assert found.newest(LEAD) == (3, 1)


def test_a_step_has_what_happened_since_the_step_before() -> None:
    found = Journal()
    found.answered(0.5)
    found.failed("503")
    found.acknowledged(5)
    first, second = found.take(), found.take()
    assert (first.requests, first.slowest, first.failures, first.events) == (1, 0.5, ["503"], 5)
    assert (second.requests, second.slowest, second.failures, second.events) == (0, 0.0, [], 0)
