"""The writes to Redis that a change requires, as plain values.

A `head` is the first 22 bytes of a stored value and identifies the event that it shows (`schemas.layouts`). The scripts
compare it with the stored one, and write only if it is newer.
"""

from typing import ClassVar

import msgspec

from schemas.resources import LEAD, Resource


class PutLead(msgspec.Struct, frozen=True, gc=False):
    """Write a lead. The script puts the summary of its contact between `before` and `after`."""

    resource: ClassVar[Resource] = LEAD
    organization_id: str
    id: str
    contact_id: str
    head: bytes
    body_hash: bytes
    before: bytes
    after: bytes


class PutDocument(msgspec.Struct, frozen=True, gc=False):
    """Write a document of any other resource. `value` is stored as it is; into that of a contact the script inserts the
    first lead of its index.
    """

    resource: Resource
    organization_id: str
    id: str
    value: bytes


class DeleteDocument(msgspec.Struct, frozen=True, gc=False):
    """Leave a marker in place of a document. `value` is the marker: the head alone."""

    resource: Resource
    organization_id: str
    id: str
    value: bytes


class PutOrganization(msgspec.Struct, frozen=True, gc=False):
    """`access` is API access and limits in 17 bytes; empty for a delete."""

    organization_id: str
    head: bytes
    access: bytes


class PutApiKey(msgspec.Struct, frozen=True, gc=False):
    """`validity` is the state and the expiry in 7 bytes, for the record that the API looks up by the hash."""

    organization_id: str
    id: str
    hash: str
    head: bytes
    validity: bytes


class DeleteApiKey(msgspec.Struct, frozen=True, gc=False):
    """Leave a marker in place of an API key. The marker is the head alone."""

    organization_id: str
    id: str
    head: bytes


PutOrDelete = PutLead | PutDocument | DeleteDocument
"""An intent that writes or deletes a document."""
Intent = PutOrDelete | PutOrganization | PutApiKey | DeleteApiKey
