"""What each version of a document looks like, byte for byte, from what was published."""

import msgspec

from projector import mapping
from projector.change import read
from projector.record import Kind
from projector.reference import Entity
from schemas import documents, events
from tests.crm import Message


class Bodies:
    """Every document that was ever published, by register and version."""

    def __init__(self) -> None:
        self._documents: dict[tuple[Entity, str], documents.Lead | documents.Contact] = {}

    def add(self, register: Entity, shown: str | None, message: Message) -> None:
        if shown is None:
            return
        match read(message.record()).entity:
            case events.Lead() as lead:
                self._documents[register, shown] = mapping.lead_document(lead)
            case events.Contact() as contact:
                self._documents[register, shown] = mapping.contact_document(contact)

    def __call__(self, register: Entity, shown: str, contact_shown: str | None) -> bytes | None:
        """The body of a version; of a lead, with this version of its contact. None where there is no such version."""
        document = self._documents.get((register, shown))
        if isinstance(document, documents.Lead):
            contact = self._documents.get(((Kind.CONTACT, register[1], document.contact_id), contact_shown or ""))
            if contact_shown is not None and contact is None:
                return None
            summary = mapping.contact_summary(contact) if isinstance(contact, documents.Contact) else None
            document = msgspec.structs.replace(document, contact=summary)
        return msgspec.json.encode(document) if document else None
