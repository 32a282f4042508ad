"""The version of Leadview. A test compares it with `pyproject.toml`."""

VERSION = "0.1.0"
