"""Turns intents into the script calls that carry them out, in every written generation.

Pure. On a Redis Cluster all keys of a call belong to one organization, and so to one slot.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar, assert_never, cast

import msgspec

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
from projector.redis import scripts
from runtime.redis.scripts import Command
from schemas import names
from schemas.bodies import SUMMARY, packed_lead, packed_value
from schemas.control import GenerationId
from schemas.layouts import PLAIN_BODY, PUT_CONTACT_PREFIX, PUT_LEAD_PREFIX
from schemas.resources import CONTACT, LEAD, RESOURCES, Resource

Generations = tuple[GenerationId, ...]
MAX_DOCUMENTS = 20
"""Default for the maximum number of documents per script call. Redis is single-threaded: larger calls delay readers,
smaller ones cost more per document."""
MAX_LEADS = 100
"""Maximum number of leads that one call updates with the summary of their contact. It must not exceed the LIMIT
in `index_repair.lua`: a fan-out that gets fewer leads than this takes them as the last ones."""
T = TypeVar("T")


class Fan(msgspec.Struct, gc=False):
    """A contact, and those of its leads that contain an old summary. `lead_ids` are short ids, as in the index."""

    organization_id: str
    contact_id: str
    lead_ids: list[bytes]

    @property
    def contact(self) -> tuple[str, str]:
        """Its organization and its id."""
        return self.organization_id, self.contact_id


class Call(msgspec.Struct, frozen=True, gc=False):
    """A command, and the intents that it carries out. The header of its script describes the reply."""

    command: Command
    intents: Sequence[Intent]


def compressed(intent: Intent) -> Intent:
    """Returns an intent that writes the same document compressed (`LEADVIEW_COMPRESSION`). Others are returned as they
    are.
    """
    # Patterns of classes would take as much time as the compression.
    if isinstance(intent, PutLead):
        text = b"".join((intent.before, SUMMARY, intent.after))
        before, after = packed_lead(intent.contact_id, text)
        ids = intent.organization_id, intent.id, intent.contact_id
        return PutLead(*ids, intent.head, intent.body_hash, before, after)
    if isinstance(intent, PutDocument):
        value = packed_value(intent.resource, intent.value)
        return PutDocument(intent.resource, intent.organization_id, intent.id, value)
    return intent


def of_intents(
    intents: Iterable[Intent],
    generations: Generations,
    *,
    overwrite_equal: bool = False,
    clustered: bool = False,
    max_documents: int = MAX_DOCUMENTS,
) -> Iterator[Call]:
    """Yields the calls for these intents, with up to `max_documents` in each; on a cluster, of only one organization.

    Intents of one entity keep their order. With `overwrite_equal`, a document or API key is also written if the stored
    one was written by the same event.
    """
    by_resource: dict[Resource, list[PutOrDelete]] = {resource: [] for resource in RESOURCES}
    for intent in intents:
        match intent:
            case PutLead() | PutDocument() | DeleteDocument():
                by_resource[intent.resource].append(intent)
            case PutOrganization():
                owner = names.organization(intent.organization_id)
                command = scripts.put_organization(organization=owner, head=intent.head, access=intent.access)
                yield Call(command, [intent])
            case PutApiKey() | DeleteApiKey():
                yield Call(api_key(intent, "", overwrite_equal=overwrite_equal), [intent])
            case _:
                assert_never(intent)
    # In the order of RESOURCES, because a lead that is written after its contact needs no second write.
    for resource, documents in by_resource.items():
        for group in groups(
            documents, lambda intent: intent.organization_id, clustered=clustered, max_items=max_documents
        ):
            yield Call(put_documents(resource, group, generations, overwrite_equal=overwrite_equal), group)


def groups(
    items: list[T], organization: Callable[[T], str | bytes], *, clustered: bool, max_items: int = MAX_DOCUMENTS
) -> Iterator[list[T]]:
    """Yields the items that may share a call: at most `max_items`, and on a cluster only those of one organization."""
    if clustered:
        by_organization: dict[str | bytes, list[T]] = {}
        for item in items:
            by_organization.setdefault(organization(item), []).append(item)
    else:
        by_organization = {"": items}
    for group in by_organization.values():
        for start in range(0, len(group), max_items):
            yield group[start : start + max_items]


def put_documents(
    resource: Resource, intents: Sequence[PutOrDelete], generations: Generations, *, overwrite_equal: bool = False
) -> Command:
    """Returns the call that writes documents of a resource, or markers in place of deleted ones."""
    if resource is LEAD:
        return _put_leads(intents, generations, overwrite_equal=overwrite_equal)
    owners = [names.organization(intent.organization_id) for intent in intents]
    ids = names.short_ids([intent.id for intent in intents])
    keys = names.in_generations(resource, zip(owners, ids, strict=True), generations)
    # Behind the name of each contact comes that of the index of its leads.
    documents = keys[::2] if resource is CONTACT else keys
    width = PUT_CONTACT_PREFIX if resource is CONTACT else PLAIN_BODY
    values = [intent.value for intent in cast(Sequence[PutDocument | DeleteDocument], intents)]
    prefixes = b"".join([value[:width].ljust(width, b"\0") for value in values])
    put = partial(scripts.put_contacts, indexes=keys[1::2]) if resource is CONTACT else scripts.put_documents
    return put(
        documents=documents,
        organizations=owners,
        generations=len(generations),
        overwrite_equal=overwrite_equal,
        repeated=_repeats(documents),
        prefixes=prefixes,
        bodies=[value[width:] for value in values],
    )


def _put_leads(intents: Sequence[PutOrDelete], generations: Generations, *, overwrite_equal: bool) -> Command:
    prefixes: list[bytes] = []
    bodies: list[bytes] = []
    ends: list[bytes] = []
    owners = [names.organization(intent.organization_id) for intent in intents]
    lead_ids = names.short_ids([intent.id for intent in intents])
    # A marker has no contact: its own id stands there until the names are replaced below.
    contact_ids = names.short_ids(
        [intent.contact_id if isinstance(intent, PutLead) else intent.id for intent in intents]
    )
    leads = names.in_generations(LEAD, zip(owners, lead_ids, strict=True), generations)
    # Behind the name of each contact comes that of the index of its leads.
    of_contacts = names.in_generations(CONTACT, zip(owners, contact_ids, strict=True), generations)
    per_lead = 2 * len(generations)
    for number, intent in enumerate(intents):
        if isinstance(intent, PutLead):
            prefixes += intent.head, intent.body_hash
            bodies.append(intent.before)
            ends.append(intent.after)
        else:
            prefixes.append(intent.value.ljust(PUT_LEAD_PREFIX, b"\0"))
            bodies.append(b"")
            ends.append(b"")
            of_contacts[number * per_lead : (number + 1) * per_lead] = [owners[number]] * per_lead
    contacts = of_contacts[::2]
    return scripts.put_leads(
        documents=leads,
        organizations=owners,
        contacts=contacts,
        indexes=of_contacts[1::2],
        generations=len(generations),
        overwrite_equal=overwrite_equal,
        repeated=_repeats(leads) or _repeats(contacts),
        prefixes=b"".join(prefixes),
        bodies=bodies,
        ends=ends,
    )


def _repeats(keys: list[bytes]) -> bool:
    """Returns whether a name occurs twice: Redis would need longer to find out."""
    return len(set(keys)) < len(keys)


def api_key(intent: PutApiKey | DeleteApiKey, stored_hash: str, *, overwrite_equal: bool = False) -> Command:
    """Returns the call for a key. `stored_hash` is the reply of the previous call; empty in the first call."""
    owner = names.organization(intent.organization_id)
    name, stored = names.api_key_entity(owner, intent.id), names.api_key(owner, stored_hash) if stored_hash else None
    if isinstance(intent, DeleteApiKey):
        return scripts.delete_api_key(
            organization=owner, api_key=name, stored_record=stored, head=intent.head, stored_hash=stored_hash
        )
    return scripts.put_api_key(
        organization=owner,
        api_key=name,
        record=names.api_key(owner, intent.hash),
        stored_record=stored,
        entity=intent.head + intent.hash.encode(),
        validity=intent.validity,
        stored_hash=stored_hash,
        overwrite_equal=overwrite_equal,
    )


def leave_contact(lead: PutOrDelete, contact_id: str, generations: Generations) -> Command:
    """Returns the call that removes a lead from the index of its former contact."""
    owner = names.organization(lead.organization_id)
    keys = []
    for generation in generations:
        keys += [names.document(LEAD, owner, generation, lead.id), *contact_keys(owner, contact_id, (generation,))]
    return scripts.leave_contact(leads=keys, contact_id=contact_id, lead_id=names.short_id(lead.id))


def pending_leads(
    organization_id: str, contact_id: str, generations: Generations, shown: Collection[bytes] = ()
) -> Command:
    """Returns the call that reads which leads of a contact contain an old summary: neither the present one, nor one
    with a hash in `shown`.
    """
    owner = names.organization(organization_id)
    contacts = contact_keys(owner, contact_id, generations)
    return scripts.pending_leads(organization=owner, contacts=contacts, shown=b"".join(shown))


def resplices(fans: Iterable[Fan], generations: Generations, *, clustered: bool) -> Iterator[Command]:
    """Yields the calls that put the present summaries into these leads: at most `MAX_LEADS` leads in each."""
    batch: list[Fan] = []
    for fan in _sliced(fans):
        full = sum(len(other.lead_ids) for other in batch) + len(fan.lead_ids) > MAX_LEADS
        if batch and (full or (clustered and fan.organization_id != batch[0].organization_id)):
            yield _resplice(batch, generations)
            batch = []
        batch.append(fan)
    if batch:
        yield _resplice(batch, generations)


def _sliced(fans: Iterable[Fan]) -> Iterator[Fan]:
    for fan in fans:
        for start in range(0, len(fan.lead_ids), MAX_LEADS):
            yield Fan(fan.organization_id, fan.contact_id, fan.lead_ids[start : start + MAX_LEADS])


def _resplice(fans: Sequence[Fan], generations: Generations) -> Command:
    keys: list[bytes] = []
    leads: list[bytes] = []
    for fan in fans:
        owner = names.organization(fan.organization_id)
        keys.append(owner)
        for generation in generations:
            keys += contact_keys(owner, fan.contact_id, (generation,))
            keys += names.in_generations(LEAD, [(owner, lead_id) for lead_id in fan.lead_ids], (generation,))
        leads += (fan.contact_id.encode(), b"%d" % len(fan.lead_ids), *fan.lead_ids)
    return scripts.resplice(contacts=keys, generations=len(generations), leads=leads)


def contact_keys(owner: bytes, contact_id: str, generations: Generations) -> list[bytes]:
    """Returns the names of a contact and of the index of its leads, in each generation."""
    return names.in_generations(CONTACT, [(owner, names.short_id(contact_id))], generations)
