"""Which dead letters are read from Kafka in one read when they are redriven."""

import pytest

from projector.dead_letter import DeadLetter
from projector.upkeep.redrive import _neighbours


def letters(*places: tuple[str, int, int]) -> list[DeadLetter]:
    return [DeadLetter(topic, partition, offset, "key", "reason", 0) for topic, partition, offset in places]


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        pytest.param([], [], id="none"),
        pytest.param([7], [1], id="one"),
        pytest.param([7, 8, 5000], [3], id="near"),
        pytest.param([7, 8, 6000], [2, 1], id="far"),
        pytest.param(list(range(2500)), [1000, 1000, 500], id="many"),
    ],
)
def test_letters_that_are_near_are_read_together(offsets: list[int], lengths: list[int]) -> None:
    found = list(_neighbours(letters(*(("leads", 0, offset) for offset in offsets))))
    assert [len(group) for group in found] == lengths
    assert [letter.offset for group in found for letter in group] == offsets


def test_partitions_are_read_one_after_the_other() -> None:
    found = _neighbours(letters(("contacts", 0, 1), ("contacts", 1, 2), ("leads", 1, 3)))
    assert [[letter.offset for letter in group] for group in found] == [[1], [2], [3]]
