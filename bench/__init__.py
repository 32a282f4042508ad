"""Measures Leadview beside the programs that a user would take instead, and beside the limits: see README.md."""
