"""Fuzzing at each border of Leadview: what is sent to it may be anything, and must change nothing for others.

`python -m tests.fuzz [names] --seconds N --seed S` runs each border for a share of the time. The same seed makes the
same inputs, so a finding can be repeated.
"""
