"""Asks the coordinators which members the consumer groups have.

Kafka gives partitions to any program that joins the group, such as another installation or a console consumer. No
projector applies the partitions of such a member. The right DESCRIBE on the group, which READ includes, is needed.
"""

import asyncio
from typing import Any, NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import for_code
from aiokafka.protocol.admin import DescribeGroupsRequest

from projector.errors import Denied, Unavailable
from projector.kafka.client import errors
from projector.record import Partition

_SECONDS = 2.0
"""The time that the coordinators have: an observation has more to read."""


class Member(NamedTuple):
    """A member of a group. `partitions` are those that Kafka has given it, as far as that can be read."""

    id: str
    group: str
    client_id: str
    host: str
    partitions: tuple[Partition, ...]


class Groups:
    """The consumer groups of an installation: `<group id>` and `<group id>.access` are those of the lines, and nobody
    may be a member of `<group id>.accepted`.
    """

    def __init__(self, group_id: str) -> None:
        self._names = (group_id, f"{group_id}.access", f"{group_id}.accepted")
        self._coordinators: dict[str, int] = {}

    async def members(self, client: Any) -> list[Member] | None:
        """Asks the coordinators, with an AIOKafkaClient. Returns the members of all groups; None if this user may not
        know them, or if the brokers cannot say it. Raises Unavailable.
        """
        found: list[Member] = []
        try:
            async with errors(), asyncio.timeout(_SECONDS):
                for name in self._names:
                    found += await self._members(client, name)
        except (Denied, NotImplementedError):  # the latter is of aiokafka: the broker does not know the request
            return None
        except Unavailable:
            self._coordinators.clear()  # another broker may be the coordinator by now
            raise
        return found

    async def _members(self, client: Any, name: str) -> list[Member]:
        if name not in self._coordinators:
            self._coordinators[name] = await client.coordinator_lookup(CoordinationType.GROUP, name)
        # One group at a time: aiokafka cannot read an answer about several.
        answer = await client.send(self._coordinators[name], DescribeGroupsRequest([name]))
        [(error, _, _, _, _, members, *_)] = answer.groups
        if error:
            raise for_code(error)(name)
        return [
            Member(id_, name, client_id, host.removeprefix("/"), _partitions(assignment))
            for id_, client_id, host, _, assignment in members
        ]


def _partitions(assignment: bytes) -> tuple[Partition, ...]:
    """Returns the partitions of a member; none if it is no consumer, which may store there what it likes."""
    try:
        assigned = ConsumerProtocol.ASSIGNMENT.decode(assignment).assignment
        return tuple(Partition(topic, number) for topic, numbers in assigned for number in numbers)
    except Exception:  # noqa: BLE001 - whatever it is
        return ()
