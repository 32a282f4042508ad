"""What NetworkPolicies let through, as their specification says. No network plugin runs that would enforce them."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Literal, NamedTuple

from tests.kubernetes.definitions import Resource

Labels = Mapping[str, str]


class Peer(NamedTuple):
    """The other end of a connection: a pod, or an address outside of the cluster and of its pods."""

    namespace: str = ""
    labels: Labels = {}  # noqa: RUF012 - it is immutable by its type
    address: str = ""


def lets_through(
    policies: Iterable[Resource], pod: Labels, way: Literal["Ingress", "Egress"], peer: Peer, port: int, protocol: str
) -> bool:
    """Returns whether a pod in the namespace of the policies may talk to `peer` (Egress), or be called by it (Ingress).
    The port is that of the side that is called.
    """
    specs = [each["spec"] for each in policies if way in each["spec"]["policyTypes"]]
    concerned = [spec for spec in specs if _selects(spec["podSelector"], pod)]
    peers = "from" if way == "Ingress" else "to"
    rules = [rule for spec in concerned for rule in spec.get(way.lower(), ())]
    return not concerned or any(
        _has_port(rule.get("ports"), port, protocol) and any(_is(each, peer) for each in rule.get(peers) or [{}])
        for rule in rules
    )


def _has_port(ports: list[Resource] | None, port: int, protocol: str) -> bool:
    return not ports or any(each["port"] == port and each.get("protocol", "TCP") == protocol for each in ports)


def _is(named: Resource, peer: Peer) -> bool:
    if "ipBlock" in named:
        return bool(peer.address) and ip_address(peer.address) in ip_network(named["ipBlock"]["cidr"])
    if not named:
        return True
    namespace = {"kubernetes.io/metadata.name": peer.namespace}
    return _selects(named["namespaceSelector"], namespace) and _selects(named.get("podSelector", {}), peer.labels)


def _selects(selector: Resource, labels: Labels) -> bool:
    equal = selector.get("matchLabels", {}).items() <= labels.items()
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions), "nothing else is understood here"
    return equal and all(labels.get(each["key"]) in each["values"] for each in expressions)
