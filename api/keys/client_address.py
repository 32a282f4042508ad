"""The address of the client that sent a request, also behind proxies."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from api.request import Request
from schemas.settings import Network

_MOST_HOPS = 32
_IPV6_NETWORK_BYTES = 8


def client_address(request: Request, proxies: tuple[Network, ...]) -> bytes:
    """Returns the client's IPv4 address, or its IPv6 network of 64 bits, because one client has all addresses of such a
    network.

    Each of the `proxies` appends to `X-Forwarded-For` the address from which it was called. So the client's address is
    the last one that is not a proxy's. What stands before it was sent by the client, and proves nothing. If there is
    none, because all are proxies or one is not an address, it is the farthest proxy's; without any, it is empty. So
    clients whose addresses are not known share one.
    """
    hops = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").replace("\n", ",").rsplit(",", _MOST_HOPS)
    found, address = b"", _parse(request.client or "")
    while address is not None:
        found = address.packed[:_IPV6_NETWORK_BYTES]
        is_proxy = any(address in network for network in proxies)
        address = _parse(hops.pop()) if is_proxy and hops else None
    return found


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Some proxies append the port as well."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
