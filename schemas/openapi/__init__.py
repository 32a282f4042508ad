"""The OpenAPI document of the HTTP API, and what it is made of."""
