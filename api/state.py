"""What the lifespan yields: found by each request in `scope["state"]`."""

from typing import TypedDict

from api.counters import Counters
from api.generation import LiveGeneration
from api.link import Link
from api.store import Store


class State(TypedDict):
    store: Store
    link: Link
    generation: LiveGeneration
    counters: Counters
