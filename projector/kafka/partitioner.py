"""Says to which partition the clients of Apache Kafka send a message key, unless their producer chooses otherwise.

The Java client, and those that follow it, hash the key with murmur2. librdkafka and what is built on it hash it with
CRC-32 by default. Each of them moves most keys to other partitions when partitions are added.
"""

_SEED, _MULTIPLIER, _SHIFT, _MASK = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition that the Java client chooses for a message key, in a topic with `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Returns the 32 bits of the hash (`org.apache.kafka.common.utils.Utils.murmur2`) as an unsigned number."""
    found = _SEED ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        found = (found * _MULTIPLIER & _MASK) ^ word
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15
