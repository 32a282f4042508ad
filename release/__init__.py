"""Checks and builds a release: `make release`."""
