"""The bytes of each version of a document, computed from what was published."""

from functools import lru_cache

import msgspec

from projector import mapping
from projector.change import read
from projector.reference import Document, Entity
from schemas import documents, events, resources
from tests.harness.crm import Message


class Bodies:
    """Every document that was ever published, by register and version."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Entity, str], Message] = {}
        self._document = lru_cache(maxsize=10_000)(self._read)

    def add(self, register: Entity, shown: str | None, message: Message) -> None:
        if shown is not None:
            self._messages[register, shown] = message

    def __call__(self, register: Entity, shown: str, contact_shown: str | None) -> bytes | None:
        """Returns the body of a version, for a lead with this version of its contact; None if there is none."""
        document = self._document(register, shown)
        if isinstance(document, documents.Lead):
            contact = self._document((resources.CONTACT, register[1], document.contact_id), contact_shown or "")
            if contact_shown is not None and contact is None:
                return None
            summary = mapping.contact_summary(contact) if isinstance(contact, documents.Contact) else None
            document = msgspec.structs.replace(document, contact=summary)
        return msgspec.json.encode(document) if document else None

    def _read(self, register: Entity, shown: str) -> Document:
        message = self._messages.get((register, shown))
        match read(message.record()).entity if message else None:
            case events.Lead() as lead:
                return mapping.lead_document(lead)
            case events.Contact() as contact:
                return mapping.contact_document(contact)
        return None
