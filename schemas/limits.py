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
"""A compressed batch of one producer, when it is uncompressed"""

MAX_POLL_BYTES = 16_777_216
"""The records that a projector takes from Kafka at once, with what each takes in memory; others wait"""

# Without it, the version of Python and the size of the stack would decide what can be read, here and by readers.
MAX_LEVELS = 100
"""Levels of objects and arrays in a field of `data`, also in one that is not known"""

MAX_ENTRIES = 1_000
"""Entries of a list"""

# Many readers of JSON refuse integers of more than 64 bits, or round them.
MIN_INTEGER = -(2**63)
"""The lowest integer"""

MAX_INTEGER = 2**63 - 1
"""The highest integer. Other numbers are IEEE doubles"""

# They take hundreds of times as long to read as other numbers.
MAX_EXTREMES = 100
"""Numbers with an exponent of three digits, or with two hundred digits in a row, in a value of more than 8 KiB"""

# Some take twenty times as long to read as other numbers.
MAX_EXPONENTS = 5_000
"""Numbers with an exponent, in a value of more than 8 KiB"""

# They take a hundred times as long to read as text.
MAX_CONTAINERS = 10_000
"""Objects and arrays in a value of more than 8 KiB"""

# Short ones that differ take several times as long to read as text.
MAX_NAMES = 20_000
"""Names of fields in a value of more than 8 KiB"""

# Short ones take several times as long to read as a long one.
MAX_TEXTS = 100_000
"""Texts, names among them, in a value of more than 8 KiB"""

MAX_DOCUMENT_BYTES = 1_048_576
"""A document in JSON; that of a lead with the largest possible summary of its contact"""

MAX_SUMMARY_BYTES = 65_536
"""The summary of a contact in JSON, which each of its leads shows"""
