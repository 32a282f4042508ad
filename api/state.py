"""What the lifespan yields: found by each request in `scope["state"]`."""

from typing import TypedDict

from api.counters import Counters
from api.generation import LiveGeneration
from api.servers import Servers
from api.store import Store


class State(TypedDict):
    store: Store
    servers: Servers
    generation: LiveGeneration
    counters: Counters
