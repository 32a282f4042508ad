"""A certificate of Redis or Kafka is renewed while a program runs, which trusts what its files hold now."""

import asyncio
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from devstack.apache_kafka import ApacheKafka, Login
from devstack.fault_proxy import faulty_proxy
from devstack.ports import LOOPBACK
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import MASTER, RedisSentinel
from runtime.redis.access import Sentinels, SlotMap, location
from runtime.redis.errors import Unavailable
from schemas.settings import RedisSettings
from tests.harness import certificates, crm
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_REFUSALS = 6
"""More than it takes until a server that is asked has as much time as it may get."""


@pytest.mark.apache
def test_kafka_gets_a_certificate_of_another_ca(redis_server: RedisService, tmp_path: Path) -> None:
    former, new = (certificates.create(_folder(tmp_path / name)) for name in ("former", "new"))
    ca, tls = tmp_path / "ca.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.write_bytes(former.certificate.read_bytes())
    tls.load_cert_chain(*former)
    with ExitStack() as stack:
        proxy = stack.enter_context(faulty_proxy(0, tls))
        login = Login("PLAINTEXT", {}, named_ports=[proxy.port])
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka", login=login))
        proxy.switch(int(broker.sasl_servers.rpartition(":")[2]))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadview = stack.enter_context(Leadview(kafka, "crm.", redis_server, tmp_path, kafka_session_timeout=2))
        leadview.topics.create(partitions=1)
        settings: dict[str, Any] = {
            "kafka_bootstrap_servers": f"{LOOPBACK}:{proxy.port}",
            "kafka_security_protocol": "SSL",
            "kafka_ssl_ca_file": ca,
        }
        projector = leadview.serve(crm.organization(), crm.contact(), crm.lead(1), **settings)
        tls.load_cert_chain(*new)
        proxy.reset_all()
        leadview.publish(crm.lead(2))
        wait_until(lambda: "the certificate of Kafka at" in leadview.run("status", **settings), "status says so")
        ca.write_bytes(new.certificate.read_bytes())
        wait_until(lambda: leadview.has_applied(leadview.topics.end_offsets), "what was published is applied")
        projector.check_running()
        wait_until(lambda: leadview.run("status", **settings).status == 0, "all is well again")


async def test_sentinels_get_a_certificate_of_another_ca(sentinel: RedisSentinel, tmp_path: Path) -> None:
    await _renewed(sentinel.port, f"rediss+sentinel://127.0.0.1:{{}}/{MASTER}", tmp_path)


async def test_a_cluster_gets_a_certificate_of_another_ca(cluster: RedisCluster, tmp_path: Path) -> None:
    await _renewed(cluster.primaries[0].port, "rediss+cluster://127.0.0.1:{}", tmp_path)


async def _renewed(port: int, url: str, tmp_path: Path) -> None:
    """The server at this port says where Redis is. It is asked before, while and after its CA is not trusted."""
    former, new = (certificates.create(_folder(tmp_path / name)) for name in ("former", "new"))
    ca, tls = tmp_path / "ca.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.write_bytes(former.certificate.read_bytes())
    tls.load_cert_chain(*former)
    before = asyncio.all_tasks()
    with faulty_proxy(port, tls) as proxy:
        settings = RedisSettings(redis_url=url.format(proxy.port), redis_tls_ca_file=str(ca))
        where = location(settings, 1.0)
        try:
            await _eventually_found(where)
            tls.load_cert_chain(*new)
            proxy.reset_all()
            for _ in range(_REFUSALS):
                with pytest.raises(Unavailable):
                    await _find(where)
            ca.write_bytes(new.certificate.read_bytes())
            await _eventually_found(where)
        finally:
            await where.close()
            await asyncio.gather(*(asyncio.all_tasks() - before))  # redis-py closes connections to nodes on its own


async def _find(where: object) -> None:
    match where:
        case Sentinels():
            await where.find()
        case SlotMap():
            await where.read()


async def _eventually_found(where: object) -> None:
    """Returns when Redis is found. On a slow machine, an answer may come too late."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(Unavailable):
                return await _find(where)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
