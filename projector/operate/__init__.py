"""What operators are told: one observation of Kafka and Redis, one judgement of it, and its words, on every surface.

`explain` tells them what became of a record, an entity or a key.
"""
