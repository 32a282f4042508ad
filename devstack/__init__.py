"""Redis and Kafka as child processes, for `make run` and for tests.

Each server listens only on loopback, keeps its files in a directory that the caller names, and ends together with the
process that started it (`devstack.leash`).
"""
