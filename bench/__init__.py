"""Measures Leadview beside what a user would take instead, and beside the limits: see README.md."""
