"""Writes to Redis. The only package that imports redis-py. It knows intents, but not Kafka."""
