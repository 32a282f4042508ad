"""The client of Redis that both programs share: where Redis is, connections, and the primaries of a cluster."""
