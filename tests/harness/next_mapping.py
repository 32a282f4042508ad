"""`python -m tests.harness.next_mapping`: the projector's program after a change of the mapping, which adds a field."""

import sys

from projector import mapping
from schemas import documents, events, resources

VERSION = mapping.VERSION + 1
PROGRAM = (sys.executable, "-m", "tests.harness.next_mapping")


class Lead(documents.Lead, frozen=True, kw_only=True):
    """A lead with one more field."""

    referrer_length: int


def lead_document(lead: events.Lead) -> documents.Lead:
    """Returns the document as the present mapping has it, with the additional field."""
    document = mapping.lead_document(lead)
    fields = {name: getattr(document, name) for name in document.__struct_fields__}
    return Lead(**fields, referrer_length=len(lead.referrer or ""))


def install() -> None:
    """Let this process map as the next version does. Call it before any other module of the projector is imported."""
    mapping.VERSION = VERSION
    mapping._DOCUMENTS[resources.LEAD] = lead_document


if __name__ == "__main__":
    install()
    from projector.__main__ import main

    sys.exit(main())
