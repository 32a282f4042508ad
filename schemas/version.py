"""The version of Leadview, which pyproject.toml repeats."""

VERSION = "0.1.0"
