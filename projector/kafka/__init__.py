"""Kafka in: the only room that imports aiokafka."""
