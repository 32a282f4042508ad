"""What operators are told: one observation of Kafka and Redis, one judgement of it, and the words, for every surface."""
