"""The HTTP API: Redis in, HTTP out (contract section 1)."""
