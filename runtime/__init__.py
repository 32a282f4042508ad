"""The parts that both programs share: connections to Redis, a metrics port, logs, and work in the background."""
