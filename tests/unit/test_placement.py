"""Which producers choose partitions otherwise than by murmur2."""

import time

from msgspec.structs import replace

from projector.kafka.partitioner import partition_of
from projector.ledger.control import PartitionCount
from projector.line.placement import Placement
from projector.record import Partition, Record
from tests.harness import crm

COUNTS = {"crm.leads": PartitionCount(3)}
KEY = crm.lead().key
RIGHT = partition_of(KEY, 3)
WRONG = (RIGHT + 1) % 3


def looked(placement: Placement, partition: int, now: float, *, age: float = 0.0, counts: object = COUNTS) -> None:
    record: Record = replace(crm.lead().record(), timestamp=int((time.time() - age) * 1000))
    placement.look({Partition("crm.leads", partition): record}, counts, now)  # type: ignore[arg-type]


def test_topic_is_named_for_ten_minutes() -> None:
    placement = Placement()
    looked(placement, RIGHT, 100.0)
    assert placement.misplaced(100.0) == []
    looked(placement, WRONG, 101.0)
    assert placement.misplaced(700.0) == ["crm.leads"]
    assert placement.misplaced(702.0) == []


def test_one_record_of_a_topic_is_looked_at_in_a_second() -> None:
    placement = Placement()
    looked(placement, RIGHT, 100.0)
    looked(placement, WRONG, 100.9)
    assert placement.misplaced(100.9) == []


def test_what_was_published_long_ago_says_nothing() -> None:
    """There may have been fewer partitions then."""
    placement = Placement()
    looked(placement, WRONG, 100.0, age=61.0)
    looked(placement, WRONG, 100.0, counts={})
    assert placement.misplaced(100.0) == []
