"""The OpenAPI document of the HTTP API: its paths, prose, examples and headers."""
