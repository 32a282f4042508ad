"""The limits of what is sent (contract section 3). A record beyond one of them is bad, and becomes a dead letter.

Every limit stands here only. The decoder, the JSON Schemas and the documentation take it from here.
"""

MAX_KEY_BYTES = 200
"""Size of a message key."""

MAX_HEADERS = 100
"""Headers of a record."""

MAX_HEADER_BYTES = 65_536
"""Size of the names and values of a record's headers."""

MAX_RECORD_BYTES = 1_048_576
"""Default size of the value of a record, uncompressed (`LEADVIEW_MAX_RECORD_BYTES`)."""

MAX_LEVELS = 100
"""Nesting of objects and arrays in `attribution`. Without a limit, the size of the stack would decide whether a record
can be read, here and in the programs that read the document."""

MAX_ENTRIES = 1_000
"""Entries of a list."""

MAX_EXTREMES = 1_000
"""Numbers with an exponent of three digits in the value of a record, if it is larger than 16 KiB."""

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""Many readers of JSON refuse other integers, or round them."""

MAX_DOCUMENT_BYTES = 1_048_576
"""Size of a document in JSON, that of a lead with its contact."""

MAX_SUMMARY_BYTES = 65_536
"""Size of a contact's summary in JSON, which every lead of the contact contains."""

MAX_BATCH_BYTES = 16 * 1_048_576
"""Size of a batch of records, as one producer has sent it, uncompressed."""

MAX_POLL_BYTES = 32 * 1_048_576
"""Size of the records that a consumer returns at once."""
