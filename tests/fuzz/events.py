"""The bytes of events: what `tests/unit/test_limits.py` tries, for as long as one likes.

What takes long is counted elsewhere (`tests/unit/test_linear.py`).
"""

import time
from collections import Counter

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.harness.crm import Message
from tests.harness.hostile_events import HOSTILE, check

_EXAMPLES = 100


def fuzz(seed: int, seconds: float) -> str:
    until, counts, rounds = time.monotonic() + seconds, Counter[str](), 0
    while not rounds or time.monotonic() < until:

        @hypothesis.seed(seed + rounds)
        @hypothesis.settings(
            max_examples=_EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(st.one_of(*HOSTILE.values()))
        def run(message: Message) -> None:
            counts[check(message)] += 1

        run()
        rounds += 1
    return f"{counts['good']:,} good and {counts['bad']:,} bad events"
