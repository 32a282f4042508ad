"""How well Leadview is: one observation of Kafka and Redis, and one judgement of it, for every surface."""
