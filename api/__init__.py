"""The HTTP API: it reads documents from Redis and serves them over HTTP."""
