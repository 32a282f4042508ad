"""Writes to Redis. It knows intents, but not Kafka."""
