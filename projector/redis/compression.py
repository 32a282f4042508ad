"""Compresses what intents write (`LEADVIEW_COMPRESSION`). Pure."""

from projector.intent import Intent, PutDocument, PutLead
from schemas.bodies import SUMMARY, packed_lead, packed_value


def compressed(intent: Intent) -> Intent:
    """Returns an intent that writes the same document compressed. Others are returned as they are."""
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
