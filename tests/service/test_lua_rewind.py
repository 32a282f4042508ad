"""The script that takes back positions of topics that have lost their history, on a real Redis."""

import pytest

from projector.ledger.breaks import rewind
from projector.ledger.control import Position
from projector.record import Partition
from projector.redis import scripts
from projector.redis.scripts import RewindRow
from schemas import names
from tests.harness.projection import Projection

AT = Partition("crm.leads", 0)
FIELD = names.position(*AT)


def position(offset: int, topic_id: str = "old") -> Position:
    return Position(offset, 1_700_000_000_000, 9, 3, topic_id)


@pytest.mark.parametrize(
    ("stored", "row", "after"),
    [
        pytest.param(position(9), rewind(AT, "new"), None, id="another topic"),
        pytest.param(position(9, "new"), rewind(AT, "new"), position(9, "new"), id="this topic"),
        pytest.param(position(9, ""), rewind(AT, "new"), position(9, ""), id="it is not known which topic"),
        pytest.param(position(9), rewind(AT, "old", 5, position(5)), position(5), id="above the cut"),
        pytest.param(position(100), rewind(AT, "old", 99, position(99)), position(99), id="100 to 99 compares numbers"),
        pytest.param(position(5), rewind(AT, "old", 5, position(5)), position(5), id="at the cut"),
        pytest.param(position(3), rewind(AT, "old", 5, position(5)), position(3), id="never forward"),
        pytest.param(position(9), rewind(AT, "new", 5, position(5, "new")), None, id="above the cut of another topic"),
        pytest.param(position(9), rewind(AT, "", 8), None, id="beyond the end, and nothing is known"),
        pytest.param(position(7), rewind(AT, "", 8), position(7), id="another projector was faster"),
        pytest.param(None, rewind(AT, "new"), None, id="nothing is stored"),
    ],
)
async def test_a_position_is_taken_back(
    projection: Projection, stored: Position | None, row: RewindRow, after: Position | None
) -> None:
    if stored:
        projection.client.hset(names.CONTROL, FIELD, stored.format())
    other = rewind(Partition("crm.contacts", 7), "new")
    command = scripts.rewind(positions=names.CONTROL, rewinds=[row, other])
    assert await projection.store.run([command]) == [stored != after]
    found = projection.client.hget(names.CONTROL, FIELD)
    assert (Position.parse(found) if found else None) == after
