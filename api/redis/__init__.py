"""Redis as the API uses it: one script call a request. Nothing else in this package talks to Redis."""
