"""Reads Kafka. The only package that imports aiokafka."""
