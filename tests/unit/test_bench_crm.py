"""The core product of the benchmarks knows its records by their resource, also resources that it does not create."""

import pytest

from bench.crm import Crm
from schemas.resources import RESOURCES, Resource


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.topic)
def test_a_tenant_has_the_ids_of_its_records(resource: Resource) -> None:
    crm = Crm()
    keys = [(record.key or b"").decode() for record in crm.records(1, 4) if record.kind is resource]
    [tenant] = crm.tenants
    assert [f"{tenant.organization_id}:{id_}" for id_ in tenant.ids(resource)] == keys
