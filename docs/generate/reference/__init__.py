"""Builds the documentation for authors of external tools and for producers: one folder that opens without a network."""
