"""The projector: change events from Kafka in, documents in Redis out."""
