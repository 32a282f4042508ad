"""A simulated world: the programs themselves, on hosts, over a network and in a time that a seed decides.

    writer ──► brokers (a model, in Kafka's protocol) ──► projectors ──►┐ links ┌► Redis ◄┐ links ┌── API ◄── readers
                                                                       └───────┘  real   └───────┘           │
                 nemesis: kills, suspends, cuts, empties, as the seed says                                    ▼
                 history of chaos ────────────────────► checker of chaos ◄──────────────────────────────── answers

An hour costs seconds, because time stands while nothing can happen, and a seed repeats everything: the same commands
reach Redis, byte for byte. `python -m tests.simulation --hours 10 --seed 7` runs it (`make simulate`).

- **The loop** (`loop.py`) is our own, on `asyncio.BaseEventLoop`: the libraries that exist ask for Python 3.12, and
  choose among all callbacks that are ready. Here each process keeps the order in which its own callbacks became ready,
  as asyncio promises, and the seed decides which process has the next turn.
- **The network** (`network.py`) carries bytes between hosts: late, in parts, not at all, or until a connection that is
  forgotten on the way ends by itself.
- **Redis** (`bridge.py`) is a real server. Each command is executed while the world stands still, so its replies depend
  on the order of commands alone. The text of our scripts stays as it is; a prelude before it gives them the time of the
  world.
- **Kafka** (`brokers.py`) is a model: the clients of the programs speak their own protocol with it.
- **Clocks and chance** (`nature.py`): what the programs ask the machine for comes from the world.
"""
