"""The bytes of each version of a document under both mappings, computed from what was published."""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from projector import mapping
from projector.change import read
from projector.reference import Document, Entity
from schemas import documents, events, resources
from tests.harness import next_mapping
from tests.harness.crm import Message

LeadMapping = Callable[[events.Lead], documents.Lead]
_LEAD_MAPPINGS: tuple[LeadMapping, ...] = (mapping.lead_document, next_mapping.lead_document)


class Bodies:
    """Every document that was ever published, by register and version."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Entity, str], Message] = {}
        self._of = lru_cache(maxsize=10_000)(self._compute)

    def add(self, register: Entity, shown: str | None, message: Message) -> None:
        if shown is not None:
            self._messages[register, shown] = message

    def __call__(self, register: Entity, shown: str, contact_shown: str | None) -> frozenset[bytes]:
        """Returns the bodies of a version, for a lead with this version of its contact; none if there is no such one.

        A lead has one for each mapping, because a deployment of the next mapping may be going on.
        """
        return self._of(register, shown, contact_shown)

    def _compute(self, register: Entity, shown: str, contact_shown: str | None) -> frozenset[bytes]:
        found = (self._body(register, shown, contact_shown, lead_mapping) for lead_mapping in _LEAD_MAPPINGS)
        return frozenset(body for body in found if body)

    def _body(self, register: Entity, shown: str, contact_shown: str | None, lead_mapping: LeadMapping) -> bytes | None:
        document = self._read(register, shown, lead_mapping)
        if isinstance(document, documents.Lead):
            contact = self._read(
                (resources.CONTACT, register[1], document.contact_id), contact_shown or "", lead_mapping
            )
            if contact_shown is not None and contact is None:
                return None
            summary = mapping.contact_summary(contact) if isinstance(contact, documents.Contact) else None
            document = msgspec.structs.replace(document, contact=summary)
        return msgspec.json.encode(document) if document else None

    def _read(self, register: Entity, shown: str, lead_mapping: LeadMapping) -> Document:
        message = self._messages.get((register, shown))
        match read(message.record()).entity if message else None:
            case events.Lead() as lead:
                return lead_mapping(lead)
            case events.Contact() as contact:
                return mapping.contact_document(contact)
        return None
