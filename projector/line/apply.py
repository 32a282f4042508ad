"""Carries out intents: writes them, and does what the replies require.

When a contact changes, its leads are written again (a fan-out in steps, with at most about 100 leads per call). Each
gets the summary that is stored by then, so that several changes share a fan-out. A lead that has moved is
removed from the index of its former contact. An API key whose hash has changed is written with both records. A deleted
or recreated organization becomes a job. A record that was published behind a newer one of its entity is noted
(`projector/ledger/late_versions.py`). All of this is safe to repeat at any time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, assert_never, cast

import msgspec

from projector.ledger import late_versions
from projector.ledger.late_versions import Behind
from projector.mapping import (
    DeleteApiKey,
    DeleteDocument,
    Intent,
    PutApiKey,
    PutDocument,
    PutLead,
    PutOrDelete,
    PutOrganization,
)
from projector.redis import calls
from projector.redis.calls import MAX_LEADS, Fan, Generations, compressed
from projector.redis.node import Fence
from projector.redis.store import Store
from runtime.redis.scripts import Command
from schemas.fields import UUID_BYTES
from schemas.layouts import ERASE_DUE, HASH_BYTES, OLDER, ORGANIZATION_DELETED, REPEATED, REPLAY_DUE, REUSED, WRITTEN
from schemas.resources import CONTACT, LEAD

_WRITTEN, _ORGANIZATION_DELETED = (b"%d" % code for code in (WRITTEN, ORGANIZATION_DELETED))
_BEHIND = tuple(b"%d" % code for code in (OLDER, REUSED, REPEATED))
_OF_KEYS = {PutApiKey, DeleteApiKey}
_STEP_LEADS = 3 * MAX_LEADS
"""The most leads that one step writes. A step for a single contact writes all that its script has returned."""
_CODE = ERASE_DUE - 1
"""The bits of a code in the reply about an organization."""


class _FanOut(msgspec.Struct):
    """The fan-out of a contact. Its ids and hashes have an order, so that a simulated run can be repeated."""

    lead_ids: dict[bytes, None] = {}
    """The short ids of leads that may contain an old summary, each once."""
    shown: dict[bytes, None] = {}
    """The hashes of the summaries that were present since it began, each once. A lead with one of them shows the
    change, or a later one: so the fan-out ends although its contact changes again and again."""


class FanOuts:
    """The fan-outs that are due, by organization and contact."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], _FanOut] = {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, contacts: Sequence[PutOrDelete], reply: list[Any]) -> None:
        """Add the leads in the reply of the script for these contacts."""
        for number, lead_id in _pairs(reply):
            contact = contacts[number]
            fan_out = self._due.setdefault((contact.organization_id, contact.id), _FanOut())
            fan_out.lead_ids[lead_id] = None
            fan_out.shown.clear()

    async def step(self, store: Store, generations: Generations, fence: Fence | None) -> int:
        """Writes the present summaries into some leads. A contact with leads left then comes after all others.
        Returns how many leads were written. Raises Unavailable.
        """
        fans: list[Fan] = []
        most = _STEP_LEADS
        for (organization_id, contact_id), fan_out in self._due.items():
            if fans and len(fan_out.lead_ids) > most:
                break
            fans.append(Fan(organization_id, contact_id, list(fan_out.lead_ids)))
            most -= len(fan_out.lead_ids)
        replies = await store.run(
            list(calls.resplices(fans, generations, clustered=await store.clustered())), fence=fence
        )
        # If a contact had less than a full batch, and every call did all, it has no other leads to update.
        cut_off = min(replies) < 0
        left = [fan for fan in fans if cut_off or len(fan.lead_ids) >= MAX_LEADS]
        asks = [calls.pending_leads(*fan.contact, generations, self._due[fan.contact].shown) for fan in left]
        pending = await store.run(asks, fence=fence) if asks else []
        taken = {fan.contact: self._due.pop(fan.contact) for fan in fans}
        for fan, reply in zip(left, pending, strict=True):
            if lead_ids := reply[1:]:
                present = [reply[0][at : at + HASH_BYTES] for at in range(0, len(reply[0]), HASH_BYTES)]
                shown = taken[fan.contact].shown | dict.fromkeys(present)
                self._due[fan.contact] = _FanOut(dict.fromkeys(lead_ids), shown)
        return sum(reply if reply >= 0 else -1 - reply for reply in replies)


class Applied(msgspec.Struct):
    """Counts intents: written, stale (not newer than the stored value), or of a deleted organization."""

    written: int = 0
    stale: int = 0
    dropped: int = 0
    respliced: int = 0
    """Leads that got a new summary of their contact."""

    def count(self, codes: bytes) -> None:
        """Count the codes in the reply of a script: one digit for each intent."""
        written, dropped = codes.count(_WRITTEN), codes.count(_ORGANIZATION_DELETED)
        self.written += written
        self.dropped += dropped
        self.stale += len(codes) - written - dropped

    def add(self, other: "Applied") -> None:
        self.written += other.written
        self.stale += other.stale
        self.dropped += other.dropped
        self.respliced += other.respliced


async def apply(
    store: Store,
    intents: Sequence[Intent],
    generations: Generations,
    *,
    fence: Fence | None = None,
    overwrite_equal: bool = False,
    max_documents: int = calls.MAX_DOCUMENTS,
    fan_outs: FanOuts | None = None,
) -> Applied:
    """Writes the intents, which may come in any order, in all these generations. Then does what the replies require.
    Raises Unavailable, and is then safe to call again.

    The `fence` is the session that the generations are from.

    A script call contains at most `max_documents` documents. With `overwrite_equal`, a document or API key is also
    written if the stored one was written by the same event.

    With `fan_outs`, the fan-outs that become due are only added there, and the caller has to make all their steps.
    """
    if not intents:
        return Applied()
    applied, due = Applied(), FanOuts() if fan_outs is None else fan_outs
    for some in _parts(intents):
        applied.add(await _apply(store, some, generations, fence, overwrite_equal, max_documents, due))
    while due and fan_outs is None:
        applied.respliced += await due.step(store, generations, fence)
    return applied


async def _apply(
    store: Store,
    intents: Sequence[Intent],
    generations: Generations,
    fence: Fence | None,
    overwrite_equal: bool,
    max_documents: int,
    fan_outs: FanOuts,
) -> Applied:
    clustered = await store.clustered()
    wanted = list(
        calls.of_intents(
            map(compressed, intents) if store.compresses else intents,
            generations,
            overwrite_equal=overwrite_equal,
            clustered=clustered,
            max_documents=max_documents,
        )
    )
    replies = await store.run([call.command for call in wanted], fence=fence)
    applied = Applied()
    moves: list[Command] = []
    jobs: list[str] = []
    behind: list[Behind] = []
    for call, reply in zip(wanted, replies, strict=True):
        match call.intents[0]:
            case PutLead() | PutDocument() | DeleteDocument() as first:
                documents = cast(Sequence[PutOrDelete], call.intents)
                if first.resource is LEAD:
                    moves += _moves(documents, reply, generations)
                elif first.resource is CONTACT:
                    fan_outs.add(documents, reply)
                applied.count(reply[0])
                behind += _behind(documents, reply[0])
            case PutApiKey() | DeleteApiKey() as key:
                code = await _finish_api_key(store, key, reply, fence, overwrite_equal=overwrite_equal)
                applied.count(b"%d" % code)
                behind += _behind([key], b"%d" % code)
            case PutOrganization() as organization:
                due = {"erase": reply & ERASE_DUE, "replay": reply & REPLAY_DUE}
                owner = f"{organization.organization_id} {organization.head.hex()}"
                jobs += [f"{verb} {owner}" for verb, is_due in due.items() if is_due]
                applied.count(b"%d" % (reply & _CODE))
                behind += _behind([organization], b"%d" % (reply & _CODE))
            case unknown:
                assert_never(unknown)
    if behind:
        await late_versions.note(store, behind, generations, fence)
    if jobs:
        await store.add_jobs(jobs)
    if moves:
        await store.run(moves, fence=fence)
    return applied


async def _finish_api_key(
    store: Store, intent: PutApiKey | DeleteApiKey, reply: Any, fence: Fence | None, *, overwrite_equal: bool
) -> int:
    """Repeat the call with the record of the stored hash among its keys, until no other write intervenes."""
    while isinstance(reply, bytes):
        call = calls.api_key(intent, reply.decode(), overwrite_equal=overwrite_equal)
        [reply] = await store.run([call], fence=fence)
    return cast(int, reply)


def _parts(intents: Sequence[Intent]) -> Iterator[Sequence[Intent]]:
    """Yields the intents in parts in which no API key is written twice.

    A call for a key may have to be repeated with its stored hash, and a later event of the key would overtake it.
    """
    if _OF_KEYS.isdisjoint(map(type, intents)):
        yield intents
        return
    first, seen = 0, set[tuple[str, str]]()
    for number, intent in enumerate(intents):
        if isinstance(intent, PutApiKey | DeleteApiKey):
            if (key := (intent.organization_id, intent.id)) in seen:
                yield intents[first:number]
                first, seen = number, set()
            seen.add(key)
    yield intents[first:]


def _behind(intents: Sequence[Intent], codes: bytes) -> list[Behind]:
    """Returns the intents whose record comes behind that of the stored event, with their codes."""
    if not any(code in codes for code in _BEHIND):
        return []
    return [(intent, code - 48) for intent, code in zip(intents, codes, strict=True) if b"%c" % code in _BEHIND]


def _moves(leads: Sequence[PutOrDelete], reply: list[Any], generations: Generations) -> Iterator[Command]:
    for number, contact_id in _pairs(reply):
        if UUID_BYTES.fullmatch(contact_id):  # otherwise the stored lead was corrupted
            yield calls.leave_contact(leads[number], contact_id.decode(), generations)


def _pairs(reply: list[Any]) -> Iterator[tuple[int, bytes]]:
    """Yields the pairs after the codes in the reply of a script for documents: the number of an intent, and an id."""
    return zip(reply[1::2], reply[2::2], strict=True)
