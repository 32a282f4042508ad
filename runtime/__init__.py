"""What both programs need while they run: connections to Redis, a metrics port, logs, and work in the background."""
