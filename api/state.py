"""What the lifespan yields: found by each request in `scope["state"]`."""

from typing import TypedDict

from api.metrics.counters import Counters
from api.redis.generation import LiveGeneration
from api.redis.servers import Servers
from api.redis.store import Store


class State(TypedDict):
    store: Store
    servers: Servers
    generation: LiveGeneration
    counters: Counters
