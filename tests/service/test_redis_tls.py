"""The certificate of Redis is renewed while a program runs, which trusts what its files hold now."""

import asyncio
import ssl
from pathlib import Path

import pytest

from devstack.fault_proxy import faulty_proxy
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import MASTER, RedisSentinel
from runtime.redis.access import Sentinels, SlotMap, location
from runtime.redis.errors import Unavailable
from schemas.settings import RedisSettings
from tests.harness import certificates

_REFUSALS = 6
"""More than it takes until a server that is asked has as much time as it may get."""


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
            await _ask(where)
            tls.load_cert_chain(*new)
            proxy.reset_all()
            for _ in range(_REFUSALS):
                with pytest.raises(Unavailable):
                    await _ask(where)
            ca.write_bytes(new.certificate.read_bytes())
            await _ask(where)
        finally:
            await where.close()
            await asyncio.gather(*(asyncio.all_tasks() - before))  # redis-py closes connections to nodes on its own


async def _ask(where: object) -> None:
    match where:
        case Sentinels():
            await where.find()
        case SlotMap():
            await where.read()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
