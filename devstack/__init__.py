"""Redis and Kafka as child processes, for `make run` and for tests.

Each server listens on loopback only, keeps its files in a directory of the caller, and dies with the process
that started it (`devstack.leash`).
"""
