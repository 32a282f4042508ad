"""Redis out: the only room that imports redis-py. It knows intents, not Kafka."""
