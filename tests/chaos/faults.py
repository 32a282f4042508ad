"""What the nemesis can do."""

from tests.chaos import (
    break_cluster,
    break_kafka,
    break_network,
    break_operations,
    break_processes,
    break_redis,
    break_tenants,
)
from tests.chaos.nemesis import Fault

NO_ANSWER, UNAVAILABLE = frozenset({0}), frozenset({503})
_SESSION_SECONDS = 2.0

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("projector-killed", break_processes.projector_killed, beside=True),
        Fault("projectors-killed", break_processes.projectors_killed),
        Fault("projector-stopped", break_processes.projector_stopped),
        Fault("projector-paused", break_processes.projector_paused, seconds=(0.2, 1.0), beside=True),
        Fault(
            "projector-zombie",
            break_processes.projector_paused,
            seconds=(2 * _SESSION_SECONDS, 3 * _SESSION_SECONDS),
            beside=True,
        ),
        Fault("api-killed", break_processes.api_killed, NO_ANSWER, inside=True),
        Fault("api-paused", break_processes.api_paused, NO_ANSWER | UNAVAILABLE),
        Fault("redis-killed", break_redis.redis_killed, UNAVAILABLE, inside=True, needs="address"),
        Fault("redis-paused", break_redis.redis_paused, UNAVAILABLE, inside=True, needs="address"),
        Fault(
            "redis-went-back",
            break_redis.redis_went_back,
            UNAVAILABLE,
            seconds=(0.5, 4.0),
            inside=True,
            needs="address",
        ),
        Fault("redis-emptied", break_redis.redis_emptied, UNAVAILABLE, inside=True),
        Fault("redis-full", break_redis.redis_full, seconds=(1.0, 3.0), inside=True),
        Fault("redis-demoted", break_redis.redis_demoted, UNAVAILABLE, needs="address"),
        Fault("redis-failover", break_redis.failover, UNAVAILABLE, seconds=(0.5, 3.0), inside=True, needs="address"),
        Fault(
            "sentinel-failover",
            break_redis.sentinel_failover,
            UNAVAILABLE,
            seconds=(0.5, 3.0),
            inside=True,
            needs="sentinel",
        ),
        Fault("redis-two-masters", break_redis.two_masters, UNAVAILABLE, inside=True, needs="sentinel"),
        Fault("scripts-flushed", break_redis.scripts_flushed),
        Fault("shard-emptied", break_cluster.shard_emptied, inside=True, needs="cluster"),
        Fault("shard-went-back", break_cluster.shard_went_back, seconds=(0.5, 4.0), inside=True, needs="cluster"),
        Fault("shard-failover", break_cluster.shard_failover, seconds=(0.5, 3.0), inside=True, needs="cluster"),
        Fault("shard-killed", break_cluster.shard_killed, inside=True, needs="cluster"),
        Fault("shard-paused", break_cluster.shard_paused, inside=True, needs="cluster"),
        Fault("shard-lost", break_cluster.shard_lost, seconds=(0.5, 3.0), needs="cluster"),
        Fault("copy-moved", break_cluster.copy_moved, seconds=(1.0, 3.0), inside=True, needs="cluster"),
        Fault("organization-moved", break_cluster.organization_moved, inside=True, needs="cluster"),
        Fault("latency", break_network.latency, seconds=(1.0, 3.0), inside=True, needs="address"),
        Fault("sliced", break_network.sliced, seconds=(1.0, 3.0), inside=True, needs="address"),
        Fault("api-stalled", break_network.api_stalled, UNAVAILABLE, needs="address"),
        Fault("projector-stalled", break_network.projector_stalled, seconds=(0.5, 4.0), needs="address"),
        Fault("refused", break_network.refused, UNAVAILABLE, inside=True, needs="address"),
        Fault("reset", break_network.reset, UNAVAILABLE, inside=True, needs="address"),
        Fault("half-closed", break_network.half_closed, UNAVAILABLE, inside=True, needs="address"),
        Fault("partitions-raised", break_kafka.partitions_raised, beside=True, groups=True),
        Fault("topic-recreated", break_kafka.topic_recreated, seconds=(0.0, 0.1), groups=True),
        Fault("rolled-back", break_operations.rolled_back, beside=True, groups=True),
        Fault("dropped-asleep", break_operations.dropped_asleep, beside=True),
        Fault("command-suspended", break_operations.command_suspended, beside=True, alone=False),
        Fault("greedy-tenant", break_tenants.greedy_tenant, seconds=(2.0, 4.0)),
        Fault("leader-killed", break_kafka.leader_killed, seconds=(1.0, 5.0), needs="brokers", beside=True),
        Fault("coordinator-killed", break_kafka.coordinator_killed, seconds=(1.0, 5.0), needs="brokers", beside=True),
        Fault("coordinator-paused", break_kafka.coordinator_paused, seconds=(1.0, 6.0), needs="brokers", beside=True),
    )
}
