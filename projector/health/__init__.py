"""Observes Kafka and Redis, and judges the observation, in the same way for every surface."""
