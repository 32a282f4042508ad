"""The fault proxy of `devstack`, under the name that tests know."""

from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy

__all__ = ["Faults", "FaultyProxy", "faulty_proxy"]
