"""Where a server listens."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which kernels assign ports, so that the port of a server is still free when it restarts. Redis
# Cluster adds 10,000 for its bus, and that port must be below the range, too.
_FIRST, _LAST = 12_000, 22_700
_CLUSTER_BUS_OFFSET = 10_000
_ATTEMPTS = 200
_claims: list[int] = []
"""A file descriptor for each port that this process was given. None is closed before the process ends."""


def free_port() -> int:
    """Returns a port of 127.0.0.1 that is free, as is the port 10,000 above it. Raises OSError.

    No other call returns the port until this process ends, not even in another process: a server may take seconds
    until it listens, and does not listen while it restarts.
    """
    for port in random.SystemRandom().sample(range(_FIRST, _LAST), _ATTEMPTS):
        if claim(port) and _is_free(port) and _is_free(port + _CLUSTER_BUS_OFFSET):
            return port
    raise OSError("there is no free port on 127.0.0.1")


def claim(port: int) -> bool:
    """Returns whether this process now has the port, as `free_port` gives it: no other one of ours has claimed it.

    The claim is a name that one socket of the machine can have, without a file (man 7 unix: abstract). The kernel
    frees it when the process ends, however it ends.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0leadview-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim.detach())
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
