"""Redis and Kafka in containers, if Docker runs and the images are available."""

import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import docker
from docker.errors import DockerException
from testcontainers.community.kafka import KafkaContainer
from testcontainers.community.redis import RedisContainer

_KAFKA_IMAGE = "confluentinc/cp-kafka:7.9.0"
_REDIS_IMAGE = "redis:8"
_REDIS_PORT = 6379
_PING_TIMEOUT_SECONDS = 5


def start_kafka(stack: ExitStack) -> str | None:
    """Returns the bootstrap address; None if Docker does not run or has no image. It stops with `stack`."""
    if not _docker_runs():
        return None
    try:
        container = stack.enter_context(KafkaContainer(_KAFKA_IMAGE).with_kraft())
    except DockerException:
        return None
    return str(container.get_bootstrap_server())


def start_redis(stack: ExitStack) -> str | None:
    """Returns the URL; None if Docker does not run or has no image. It stops with `stack`."""
    if not _docker_runs():
        return None
    try:
        container = stack.enter_context(RedisContainer(_REDIS_IMAGE))
    except DockerException:
        return None
    return f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(_REDIS_PORT)}/0"


@cache
def _docker_runs() -> bool:
    if not os.environ.get("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False
    try:
        client = docker.from_env(timeout=_PING_TIMEOUT_SECONDS)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except DockerException:
        return False
    finally:
        client.close()
