"""The limits of what is sent (docs/events.md). A record beyond one of them is bad, and becomes a dead letter.

Every limit stands here only. The decoder and the JSON Schemas take it from here, and docs/events.md shows it with the
text below it (`docs/generate/tables.py`).
"""

MAX_KEY_BYTES = 200
"""A message key"""

MAX_HEADERS = 100
"""Headers of a record"""

MAX_HEADER_BYTES = 65_536
"""The names and values of the headers of a record"""

MAX_RECORD_BYTES = 1_048_576
"""The value of a record, uncompressed, unless `LEADVIEW_MAX_RECORD_BYTES` says otherwise"""

MAX_BATCH_BYTES = 16_777_216
"""A compressed batch, as one producer has sent it, when it is uncompressed"""

MAX_POLL_BYTES = 16_777_216
"""The records that a projector takes from Kafka at once, with what each takes in memory. What is beyond this waits"""

MAX_LEVELS = 100
"""Levels of objects and arrays in a field of `data`, also in one that is not known. Without a limit, the version of
Python and the size of the stack would decide whether it can be read, here and by readers"""

MAX_ENTRIES = 1_000
"""Entries of a list"""

MIN_INTEGER = -(2**63)
"""The lowest integer. Many readers of JSON refuse integers of more than 64 bits, or round them"""

MAX_INTEGER = 2**63 - 1
"""The highest integer. Other numbers are IEEE doubles"""

MAX_EXTREMES = 100
"""Numbers with an exponent of three digits, or with two hundred digits in a row, in a value of more than 8 KiB. They
take hundreds of times as long to read as others"""

MAX_EXPONENTS = 5_000
"""Numbers with an exponent, in a value of more than 8 KiB. Some take twenty times as long to read as others"""

MAX_CONTAINERS = 10_000
"""Objects and arrays in the value of a record, if it has more than 8 KiB. They take a hundred times as long to read as
text"""

MAX_NAMES = 20_000
"""Names of fields in the value of a record, if it has more than 8 KiB. Short ones that differ take several times as
long to read as text"""

MAX_TEXTS = 100_000
"""Texts in the value of a record, its names among them, if it has more than 8 KiB. Short ones take several times as
long to read as a long one"""

MAX_DOCUMENT_BYTES = 1_048_576
"""A document in JSON. That of a lead includes the largest possible summary of its contact"""

MAX_SUMMARY_BYTES = 65_536
"""The summary of a contact in JSON, which each of its leads shows"""
