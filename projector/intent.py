"""What is to be done in Redis for a change: values that the store acts on.

A `head` is the first 22 bytes of a value (schemas.layouts): which event it shows. The store compares it with what
is stored and answers whether it was newer.
"""

import msgspec


class PutLead(msgspec.Struct, frozen=True, gc=False):
    """`before` and `after` are the body's bytes around the contact summary, which the script puts between."""

    organization_id: str
    id: str
    contact_id: str
    head: bytes
    tag: bytes
    before: bytes
    after: bytes


class DeleteLead(msgspec.Struct, frozen=True, gc=False):
    organization_id: str
    id: str
    head: bytes


class PutContact(msgspec.Struct, frozen=True, gc=False):
    """`value` is all that is stored but for the first lead: head, tag, mark, where the summary ends, and body."""

    organization_id: str
    id: str
    value: bytes


class DeleteContact(msgspec.Struct, frozen=True, gc=False):
    """`value` is the marker: its head."""

    organization_id: str
    id: str
    value: bytes


class PutOrganization(msgspec.Struct, frozen=True, gc=False):
    """`access` is API access and limits in 17 bytes; empty for a delete."""

    organization_id: str
    head: bytes
    access: bytes


class PutApiKey(msgspec.Struct, frozen=True, gc=False):
    """`record` is what the API looks up; empty when the key is revoked."""

    organization_id: str
    id: str
    hash: str
    head: bytes
    record: bytes


class DeleteApiKey(msgspec.Struct, frozen=True, gc=False):
    organization_id: str
    id: str
    head: bytes


Intent = PutLead | DeleteLead | PutContact | DeleteContact | PutOrganization | PutApiKey | DeleteApiKey
