"""From intents to the script calls that carry them out, in every generation that is being written.

Pure. On a Redis Cluster all keys of a call belong to one organization, and so to one slot.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, assert_never

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
from schemas import names

Generations = tuple[int, ...]
TOGETHER = 20
"""Documents in one call of a script, where nobody says less. Fewer cost more each; more would keep a reader waiting."""
LEADS = 100
"""Leads that one call brings up to date, at most."""
T = TypeVar("T")


class Command(msgspec.Struct, frozen=True, gc=False):
    """A call of a script in `projector/redis/lua`."""

    script: str
    keys: list[bytes]
    arguments: Sequence[bytes]


class Fan(msgspec.Struct, gc=False):
    """A contact, and leads of it that are to be brought up to date; ids are short ones, as in the index."""

    organization_id: str
    contact_id: str
    lead_ids: list[bytes]


class Call(msgspec.Struct, frozen=True, gc=False):
    """A command, and the intents that it carries out: its script's header says what it answers for each."""

    command: Command
    intents: Sequence[Intent]


def calls(
    intents: Iterable[Intent],
    generations: Generations,
    *,
    again: bool = False,
    clustered: bool = False,
    together: int = TOGETHER,
) -> Iterator[Call]:
    """The calls for these intents: up to `together` documents in each, on a cluster those of one organization.

    Those of one entity keep their order. With `again` a document or API key is written once more where the stored
    one shows the very same event.
    """
    leads: list[PutLead | DeleteLead] = []
    contacts: list[PutContact | DeleteContact] = []
    for intent in intents:
        match intent:
            case PutLead() | DeleteLead():
                leads.append(intent)
            case PutContact() | DeleteContact():
                contacts.append(intent)
            case PutOrganization():
                owner = names.organization(intent.organization_id)
                yield Call(Command("put_organization", [owner], [intent.head, intent.access]), [intent])
            case PutApiKey() | DeleteApiKey():
                yield Call(api_key(intent, "", again=again), [intent])
            case _:
                assert_never(intent)
    # Contacts first: a lead that comes after its contact needs no second write.
    for some_contacts in groups(contacts, _organization, clustered=clustered, most=together):
        yield Call(put_contacts(some_contacts, generations, again=again), some_contacts)
    for some_leads in groups(leads, _organization, clustered=clustered, most=together):
        yield Call(put_leads(some_leads, generations, again=again), some_leads)


def groups(
    items: list[T], organization: Callable[[T], str], *, clustered: bool, most: int = TOGETHER
) -> Iterator[list[T]]:
    """What may go into one call: on a cluster of one organization, and never too many."""
    if clustered:
        by_organization: dict[str, list[T]] = {}
        for item in items:
            by_organization.setdefault(organization(item), []).append(item)
    else:
        by_organization = {"": items}
    for those in by_organization.values():
        for start in range(0, len(those), most):
            yield those[start : start + most]


def put_leads(leads: Sequence[PutLead | DeleteLead], generations: Generations, *, again: bool = False) -> Command:
    """Write leads, or leave markers in place of deleted ones."""
    keys: list[bytes] = []
    arguments = [b"%d" % len(generations), b"1" if again else b""]
    for lead in leads:
        owner = names.organization(lead.organization_id)
        keys.append(owner)
        if isinstance(lead, DeleteLead):
            for generation in generations:
                keys += (names.lead(owner, generation, lead.id), owner, owner)
            arguments += (lead.head, b"", b"")
            continue
        lead_id, contact_id = names.short_id(lead.id), names.short_id(lead.contact_id)
        for generation in generations:
            keys += names.lead_with_contact(owner, generation, lead_id, contact_id)
        arguments += (lead.head + lead.tag, lead.before, lead.after)
    return Command("put_leads", keys, arguments)


def put_contacts(
    contacts: Sequence[PutContact | DeleteContact], generations: Generations, *, again: bool = False
) -> Command:
    """Write contacts, or leave markers in place of deleted ones."""
    keys: list[bytes] = []
    for contact in contacts:
        owner = names.organization(contact.organization_id)
        keys.append(owner)
        keys += contact_keys(owner, contact.id, generations)
    values = [contact.value for contact in contacts]
    return Command("put_contacts", keys, [b"%d" % len(generations), b"1" if again else b"", *values])


def api_key(intent: PutApiKey | DeleteApiKey, stored_hash: str, *, again: bool = False) -> Command:
    """The call for a key, whose stored hash is known from the call before (empty at first)."""
    owner = names.organization(intent.organization_id)
    keys = [owner, names.api_key_entity(owner, intent.id)]
    if isinstance(intent, PutApiKey):
        keys.append(names.api_key(owner, intent.hash))
    if stored_hash:
        keys.append(names.api_key(owner, stored_hash))
    if isinstance(intent, DeleteApiKey):
        return Command("delete_api_key", keys, [intent.head, stored_hash.encode()])
    entity = intent.head + intent.hash.encode()
    return Command("put_api_key", keys, [entity, intent.record, stored_hash.encode(), b"1" if again else b""])


def leave_contact(lead: PutLead | DeleteLead, contact_id: str, generations: Generations) -> Command:
    """Take a lead out of the index of the contact that it has left."""
    owner = names.organization(lead.organization_id)
    keys = []
    for generation in generations:
        keys += [names.lead(owner, generation, lead.id), *contact_keys(owner, contact_id, (generation,))]
    return Command("leave_contact", keys, [contact_id.encode(), names.short_id(lead.id)])


def pending_leads(organization_id: str, contact_id: str, generations: Generations) -> Command:
    """Which leads of a contact are still to be brought up to date."""
    owner = names.organization(organization_id)
    return Command("pending_leads", contact_keys(owner, contact_id, generations), [])


def resplices(fans: Iterable[Fan], generations: Generations, *, clustered: bool) -> Iterator[Command]:
    """Bring all these leads up to date: many contacts in a call, and no call with more leads than `LEADS`."""
    together: list[Fan] = []
    for fan in _sliced(fans):
        full = sum(len(other.lead_ids) for other in together) + len(fan.lead_ids) > LEADS
        if together and (full or (clustered and fan.organization_id != together[0].organization_id)):
            yield _resplice(together, generations)
            together = []
        together.append(fan)
    if together:
        yield _resplice(together, generations)


def _sliced(fans: Iterable[Fan]) -> Iterator[Fan]:
    for fan in fans:
        for start in range(0, len(fan.lead_ids), LEADS):
            yield Fan(fan.organization_id, fan.contact_id, fan.lead_ids[start : start + LEADS])


def _resplice(fans: Sequence[Fan], generations: Generations) -> Command:
    keys: list[bytes] = []
    arguments = [b"%d" % len(generations)]
    for fan in fans:
        owner = names.organization(fan.organization_id)
        for generation in generations:
            keys += contact_keys(owner, fan.contact_id, (generation,))
            keys += [names.lead_by_short_id(owner, generation, lead_id) for lead_id in fan.lead_ids]
        arguments += (fan.contact_id.encode(), b"%d" % len(fan.lead_ids), *fan.lead_ids)
    return Command("resplice", keys, arguments)


def contact_keys(owner: bytes, contact_id: str, generations: Generations) -> list[bytes]:
    """A contact and the index of its leads, in each generation."""
    keys: list[bytes] = []
    short_id = names.short_id(contact_id)
    for generation in generations:
        keys += names.contact_with_leads(owner, generation, short_id)
    return keys


def _organization(intent: Intent) -> str:
    return intent.organization_id
