"""A Leadview under a nemesis: a writer, readers, faults, and a checker of all that the readers saw.

    core ──► writer ──► Kafka ──► projectors ──►┐ proxy ┌► Redis ◄┐ proxy ┌── API ◄── readers
                │                               └───────┘         └───────┘             │
                │            nemesis: breaks each of these, and repairs it              │
                ▼                          │                                            ▼
             history ─────────────────► checker ◄──────────────────────────────────── answers

`python -m tests.chaos --seed 7 --seconds 600` runs it; `tests/service/test_chaos.py` is a short run.
"""
