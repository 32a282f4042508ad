"""What version of Kafka answers. Brokers do not say it, but the requests that they know tell the oldest it can be."""

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import ApiVersionRequest

from projector.errors import Unavailable
from projector.kafka.client import connection
from schemas.settings import ProjectorSettings

_FETCH = 1
_SINCE = {4: "0.11", 7: "1.1", 8: "2.0", 11: "2.3", 12: "2.7", 13: "3.1", 15: "3.5", 16: "3.7", 17: "3.9"}
"""The version of the Fetch request that each version of Kafka brought."""
OLDEST = 4


async def newest_fetch(settings: ProjectorSettings) -> int:
    """Returns the newest version of the Fetch request that the first broker that answers knows. Raises Unavailable."""
    options = connection(settings)
    for host, port, _ in collect_hosts(options.pop("bootstrap_servers")):
        try:
            opened = await create_conn(host, port, **options)
        except (KafkaError, OSError, TimeoutError):
            continue
        try:
            answer = await opened.send(ApiVersionRequest())
        finally:
            opened.close()
        return max((newest for key, _, newest in answer.api_versions if key == _FETCH), default=0)
    raise Unavailable("Kafka: no broker answers")


def release(fetch: int) -> str:
    """Returns the release of Kafka that brought this version of the Fetch request."""
    return max((since for since in _SINCE.items() if since[0] <= fetch), default=(0, "0.10"))[1]
