"""From an intent to the script call that carries it out, in every generation that is being written.

Pure. All keys of a call belong to one organization, so that it is legal on a Redis Cluster.
"""

from collections.abc import Sequence
from typing import assert_never

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


class Command(msgspec.Struct, frozen=True, gc=False):
    """A call of a script in `projector/lua`."""

    script: str
    keys: list[bytes]
    arguments: Sequence[bytes]


def command(intent: Intent, generations: Generations, *, again: bool = False) -> Command:
    """The call for an intent; its script's header says what it answers.

    With `again` a document is written once more where the stored one shows the very same event.
    """
    owner = names.organization(intent.organization_id)
    once_more = [b"1"] if again else []
    match intent:
        case PutLead():
            return _put_lead(owner, intent, generations, once_more)
        case DeleteLead():
            keys = [owner, *(names.lead(owner, generation, intent.id) for generation in generations)]
            return Command("delete_lead", keys, [intent.head, *once_more])
        case PutContact():
            keys = [owner, *_contact_keys(owner, intent.id, generations)]
            return Command("put_contact", keys, [intent.value, *once_more])
        case DeleteContact():
            keys = [owner, *_contact_keys(owner, intent.id, generations)]
            return Command("delete_contact", keys, [intent.head, *once_more])
        case PutOrganization():
            return Command("put_organization", [owner], [intent.head, intent.access])
        case PutApiKey() | DeleteApiKey():
            return api_key(intent, "")
        case _:
            assert_never(intent)


def api_key(intent: PutApiKey | DeleteApiKey, stored_hash: str) -> Command:
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
    return Command("put_api_key", keys, [entity, intent.record, stored_hash.encode()])


def leave_contact(lead: PutLead | DeleteLead, contact_id: str, generations: Generations) -> Command:
    """Take a lead out of the index of the contact that it has left."""
    owner = names.organization(lead.organization_id)
    keys = []
    for generation in generations:
        keys += [names.lead(owner, generation, lead.id), names.contact_leads(owner, generation, contact_id)]
    return Command("leave_contact", keys, [contact_id.encode(), names.short_id(lead.id)])


def pending_leads(organization_id: str, contact_id: str, generations: Generations) -> Command:
    """Which leads of a contact are still to be brought up to date."""
    owner = names.organization(organization_id)
    return Command("pending_leads", _contact_keys(owner, contact_id, generations), [])


def resplice(organization_id: str, contact_id: str, lead_ids: Sequence[bytes], generations: Generations) -> Command:
    """Bring these leads of a contact up to date; ids are short ones, as in the index."""
    owner = names.organization(organization_id)
    keys = []
    for generation in generations:
        keys += _contact_keys(owner, contact_id, (generation,))
        keys += [names.lead_by_short_id(owner, generation, lead_id) for lead_id in lead_ids]
    return Command("resplice", keys, [contact_id.encode(), *lead_ids])


def _put_lead(owner: bytes, intent: PutLead, generations: Generations, once_more: list[bytes]) -> Command:
    lead_id, contact_id = names.short_id(intent.id), names.short_id(intent.contact_id)
    keys = [owner]
    for generation in generations:
        keys += names.lead_with_contact(owner, generation, lead_id, contact_id)
    arguments = [
        intent.head + intent.tag,
        intent.before,
        intent.after,
        lead_id,
        intent.contact_id.encode(),
        *once_more,
    ]
    return Command("put_lead", keys, arguments)


def _contact_keys(owner: bytes, contact_id: str, generations: Generations) -> list[bytes]:
    keys = []
    for generation in generations:
        keys += [
            names.contact(owner, generation, contact_id),
            names.contact_leads(owner, generation, contact_id),
        ]
    return keys
