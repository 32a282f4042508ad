"""Keeps the connections of both programs to Redis, to Sentinels and to Kafka alive.

A device between two machines (NAT, a firewall, a load balancer) forgets an idle connection, and tells neither side:
what is sent later is lost. So the kernel sends a probe after 30 idle seconds, and ends a connection whose other side
does not answer.
"""

import socket

_IDLE_SECONDS = 30
"""Less than the shortest usual idle limit of such devices, which is a minute."""
_INTERVAL_SECONDS = 5
_PROBES = 3
_UNACKNOWLEDGED_MS = 30_000
"""The time for which bytes may be unacknowledged. By default, the kernel repeats them for a quarter of an hour."""

OPTIONS = {
    socket.TCP_KEEPIDLE: _IDLE_SECONDS,
    socket.TCP_KEEPINTVL: _INTERVAL_SECONDS,
    socket.TCP_KEEPCNT: _PROBES,
    socket.TCP_USER_TIMEOUT: _UNACKNOWLEDGED_MS,
}
"""The options of TCP, beside SO_KEEPALIVE."""


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel keep a connection alive."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in OPTIONS.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
