"""The programs that Leadview is compared with, each a process of its own. `bench.servers` and `bench.consumers` start
them.
"""
