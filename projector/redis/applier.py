"""Carries out intents: writes them, then what follows from the answers.

What follows: the leads of a changed contact get its summary (a fan-out in slices, no call longer than about 100
leads), a lead that has moved leaves the index of its former contact, an API key whose hash has changed is written with
both records, and a deleted or re-created organization becomes a task. Everything may be repeated at any time.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never, cast

import msgspec

from projector.intent import (
    DeleteApiKey,
    DeleteContact,
    DeleteLead,
    Intent,
    PutApiKey,
    PutContact,
    PutLead,
    PutOrganization,
)
from projector.redis import calls
from projector.redis.calls import LEADS, Command, Fan, Generations
from projector.redis.store import Store
from schemas.fields import UUID_PATTERN

STALE, WRITTEN, ORGANIZATION_DELETED, ERASE_DUE, REPLAY_DUE = 0, 1, 2, 8, 16
_CONTACT_ID = re.compile(UUID_PATTERN.encode())


class Applied(msgspec.Struct):
    """How many intents of a batch were newer than what was stored, older, or of a deleted organization."""

    written: int = 0
    stale: int = 0
    dropped: int = 0
    respliced: int = 0
    """Leads that got another summary of their contact."""

    def count(self, codes: bytes) -> None:
        """Count what scripts answered: a digit an intent."""
        written, stale = codes.count(b"%d" % WRITTEN), codes.count(b"%d" % STALE)
        self.written += written
        self.stale += stale
        self.dropped += len(codes) - written - stale

    def add(self, other: "Applied") -> None:
        self.written += other.written
        self.stale += other.stale
        self.dropped += other.dropped
        self.respliced += other.respliced


class Applier:
    """Writes intents into Redis. Every method raises Unavailable, and is safe to call again then."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def apply(
        self,
        intents: Sequence[Intent],
        generations: Generations,
        *,
        again: bool = False,
        together: int = calls.TOGETHER,
    ) -> Applied:
        """Write the intents, in any order, in all these generations, with all that follows from them.

        No script call holds more than `together` documents.

        With `again`, documents and API keys are written once more where the stored ones show the very same events.
        """
        if not intents:
            return Applied()
        clustered = await self._store.clustered()
        wanted = list(calls.calls(intents, generations, again=again, clustered=clustered, together=together))
        replies = await self._store.run([call.command for call in wanted])
        applied = Applied()
        moves: list[Command] = []
        fans: list[Fan] = []
        tasks: list[str] = []
        for call, reply in zip(wanted, replies, strict=True):
            match call.intents[0]:
                case PutLead() | DeleteLead():
                    moves += _moves(cast(Sequence[PutLead | DeleteLead], call.intents), reply, generations)
                    applied.count(reply[0])
                case PutContact() | DeleteContact():
                    fans += _fans(cast(Sequence[PutContact | DeleteContact], call.intents), reply)
                    applied.count(reply[0])
                case PutApiKey() | DeleteApiKey() as key:
                    applied.count(b"%d" % await self._finish_api_key(key, reply, again=again))
                case PutOrganization() as organization:
                    tasks += _tasks(organization, reply)
                    applied.count(b"%d" % (reply & (WRITTEN | ORGANIZATION_DELETED)))
                case unknown:
                    assert_never(unknown)
        if tasks:
            await self._store.add_jobs(tasks)
        if moves:
            await self._store.run(moves)
        applied.respliced = await self._fan_out(fans, generations)
        return applied

    async def _fan_out(self, fans: list[Fan], generations: Generations) -> int:
        """Bring the leads of contacts up to date: all contacts side by side, a slice of leads each."""
        written = 0
        clustered = await self._store.clustered()
        while fans:
            written += sum(await self._store.run(list(calls.resplices(fans, generations, clustered=clustered))))
            # Fewer than a slice means that there are no others.
            fans = [fan for fan in fans if len(fan.lead_ids) >= LEADS]
            if fans:
                asks = [calls.pending_leads(fan.organization_id, fan.contact_id, generations) for fan in fans]
                for fan, ids in zip(fans, await self._store.run(asks), strict=True):
                    fan.lead_ids = ids
                fans = [fan for fan in fans if fan.lead_ids]
        return written

    async def _finish_api_key(self, intent: PutApiKey | DeleteApiKey, reply: Any, *, again: bool) -> int:
        """Where another hash is stored, call again with its record among the keys, until nothing came between."""
        while isinstance(reply, bytes):
            [reply] = await self._store.run([calls.api_key(intent, reply.decode(), again=again)])
        return cast(int, reply)


def _moves(leads: Sequence[PutLead | DeleteLead], reply: list[Any], generations: Generations) -> Iterator[Command]:
    for number, contact_id in _pairs(reply):
        if _CONTACT_ID.fullmatch(contact_id):  # else the lead was corrupted
            yield calls.leave_contact(leads[number], contact_id.decode(), generations)


def _fans(contacts: Sequence[PutContact | DeleteContact], reply: list[Any]) -> Iterable[Fan]:
    fans: dict[int, Fan] = {}
    for number, lead_id in _pairs(reply):
        contact = contacts[number]
        fan = fans.setdefault(number, Fan(contact.organization_id, contact.id, []))
        fan.lead_ids.append(lead_id)
    return fans.values()


def _pairs(reply: list[Any]) -> Iterator[tuple[int, bytes]]:
    """What follows the digits in the reply of a script for documents."""
    return zip(reply[1::2], reply[2::2], strict=True)


def _tasks(intent: PutOrganization, reply: int) -> list[str]:
    if reply & ERASE_DUE:
        return [f"erase {intent.organization_id}"]
    if reply & REPLAY_DUE:
        return [f"replay {intent.organization_id}"]
    return []
