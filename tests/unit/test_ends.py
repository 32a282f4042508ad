"""Both ends of partitions: what the leaders are asked, and again while they change. What real brokers answer is in
`tests/service/test_open_transactions.py`.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest_v3

from projector.kafka.ends import OldestTransaction, end_offsets, first_offsets, open_transaction, readable_ends
from projector.record import Partition
from tests.harness.raw_batches import batch, record

FIRST, SECOND, THIRD = (Partition("crm.leads", number) for number in range(3))
NEW = Partition("crm.contacts", 0)
LEADERS = {FIRST: 1, SECOND: 2, THIRD: 1}
FIRST_OFFSET, READABLE_END, END = 2, 5, 9
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0b10000, 0b100000, 0b1000


class Brokers:
    """What aiokafka's client has of two brokers. `refusals` are what they answer first."""

    def __init__(self, *refusals: type[KafkaError], data: bytes = b"") -> None:
        self.refusals = list(refusals)
        self.asked: list[tuple[int, Any]] = []
        self.looked = 0
        self._data = data
        self._leaders = dict(LEADERS)
        self.cluster = SimpleNamespace(leader_for_partition=lambda at: self._leaders.get(Partition(*at)))

    def add_topic(self, _topic: str) -> None:
        pass

    def force_metadata_update(self) -> None:
        self.looked += 1
        self._leaders[NEW] = 2

    async def send(self, broker: int, request: Any) -> Any:
        code = self.refusals.pop(0).errno if self.refusals else 0
        if isinstance(request, FetchRequest):
            return SimpleNamespace(topics=[("crm.leads", [(0, code, END, READABLE_END, None, self._data)])])
        sent = request.build(OffsetRequest_v3)
        self.asked.append((broker, sent))
        return SimpleNamespace(
            topics=[
                (topic, [(number, code, -1, _offset(time, sent.isolation_level)) for number, time in partitions])
                for topic, partitions in sent.topics
            ]
        )


def _offset(time: int, isolation: int) -> int:
    return FIRST_OFFSET if time == -2 else READABLE_END if isolation else END


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(first_offsets, FIRST_OFFSET, id="the first offset"),
        pytest.param(readable_ends, READABLE_END, id="the readable end"),
        pytest.param(end_offsets, END, id="the end offset"),
    ],
)
async def test_each_leader_is_asked_once(asked: Any, expected: int) -> None:
    brokers = Brokers()
    assert await asked(brokers, LEADERS) == dict.fromkeys(LEADERS, expected)
    assert sorted(broker for broker, _ in brokers.asked) == [1, 2]
    assert await asked(brokers, []) == {}


async def test_leaders_are_asked_again_while_they_change() -> None:
    brokers = Brokers(NotLeaderForPartitionError, NotLeaderForPartitionError)
    assert await end_offsets(brokers, [FIRST]) == {FIRST: END}
    assert (len(brokers.asked), brokers.looked) == (3, 2)


async def test_leader_that_is_not_known_yet_is_looked_for() -> None:
    brokers = Brokers()
    assert await readable_ends(brokers, [NEW]) == {NEW: READABLE_END}
    assert brokers.looked == 1


async def test_what_is_refused_is_not_asked_again() -> None:
    brokers = Brokers(TopicAuthorizationFailedError)
    with pytest.raises(TopicAuthorizationFailedError, match=r"crm\.leads:0"):
        await end_offsets(brokers, [FIRST])
    assert len(brokers.asked) == 1


@pytest.mark.parametrize(
    ("attributes", "base", "began_at"),
    [
        pytest.param(TRANSACTIONAL, READABLE_END, 0, id="its first record is there"),
        pytest.param(0, READABLE_END, None, id="a record that is in no transaction"),
        pytest.param(TRANSACTIONAL | CONTROL, READABLE_END, None, id="a marker"),
        pytest.param(TRANSACTIONAL, READABLE_END - 1, None, id="a batch from before"),
        pytest.param(None, READABLE_END, None, id="nothing"),
    ],
)
async def test_open_transaction_began_at_its_first_record(
    attributes: int | None, base: int, began_at: int | None
) -> None:
    data = b"" if attributes is None else batch([record(0, b"key", b"value")], attributes=attributes, base=base)
    found = await open_transaction(Brokers(data=data), FIRST, READABLE_END, END)
    assert found == OldestTransaction(READABLE_END, END, began_at)
    assert found.records == END - READABLE_END
