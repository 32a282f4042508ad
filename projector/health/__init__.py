"""Whether the projector works, sampled from Kafka and Redis independently of what its lines do."""
