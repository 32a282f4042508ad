"""The script that takes back positions of topics that have lost their history, on a real Redis."""

import pytest

from projector.ledger import breaks
from projector.ledger.breaks import Rewind
from projector.ledger.control import Position
from projector.record import Partition
from schemas import names
from tests.harness.projection import Projection

AT = Partition("crm.leads", 0)
FIELD = names.position(*AT)


def position(offset: int, topic_id: str = "old") -> Position:
    return Position(offset, 1_700_000_000_000, 9, 3, topic_id)


@pytest.mark.parametrize(
    ("stored", "rewind", "after"),
    [
        pytest.param(position(9), breaks.of_new_topic(AT, "new"), None, id="another topic"),
        pytest.param(position(9, "new"), breaks.of_new_topic(AT, "new"), position(9, "new"), id="this topic"),
        pytest.param(
            position(9, ""), breaks.of_new_topic(AT, "new"), position(9, ""), id="it is not known which topic"
        ),
        pytest.param(position(9), Rewind(AT, "old", 5, position(5)), position(5), id="above the cut"),
        pytest.param(position(100), Rewind(AT, "old", 99, position(99)), position(99), id="100 to 99 compares numbers"),
        pytest.param(position(5), Rewind(AT, "old", 5, position(5)), position(5), id="at the cut"),
        pytest.param(position(3), Rewind(AT, "old", 5, position(5)), position(3), id="never forward"),
        pytest.param(position(9), Rewind(AT, "new", 5, position(5, "new")), None, id="above the cut of another topic"),
        pytest.param(position(9), Rewind(AT, "", 8), None, id="beyond the end, and nothing is known"),
        pytest.param(position(7), Rewind(AT, "", 8), position(7), id="another projector was faster"),
        pytest.param(None, breaks.of_new_topic(AT, "new"), None, id="nothing is stored"),
    ],
)
async def test_a_position_is_taken_back(
    projection: Projection, stored: Position | None, rewind: Rewind, after: Position | None
) -> None:
    if stored:
        projection.client.hset(names.CONTROL, FIELD, stored.format())
    await projection.store.run([breaks.rewind(names.CONTROL, [rewind])])
    found = projection.client.hget(names.CONTROL, FIELD)
    assert (Position.parse(found) if found else None) == after
