"""The lists of topics in deploy/kubernetes/strimzi, docs/production.md and compose.yaml, derived from the rows."""

from schemas.resources import ACCESS_KINDS, AS_SPECIFIED
from schemas.settings import ProjectorSettings

_PREFIX = ProjectorSettings().topic_prefix
TOPICS = tuple(kind.topic for kind in (*AS_SPECIFIED, *ACCESS_KINDS))
"""Without their prefix, in the order in which people read them."""
# Comments that are true for each topic stand above the first one.
_RESOURCE = """\
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaTopic
metadata:
  name: {name}
spec:
  partitions: 6
  replicas: 3
  config:
    cleanup.policy: compact
    min.insync.replicas: 2
    delete.retention.ms: 604800000
    max.message.bytes: 1310720"""
_RIGHT = """\
      - resource: {{type: topic, name: {name}}}
        operations: [Read, Describe, DescribeConfigs]"""


def strimzi_topics() -> str:
    """Returns a KafkaTopic for each topic."""
    return "\n".join(_RESOURCE.format(name=f"{_PREFIX}{topic}") for topic in TOPICS)


def strimzi_rights() -> str:
    """Returns the rights of the projectors' KafkaUser to read the topics."""
    return "\n".join(_RIGHT.format(name=f"{_PREFIX}{topic}") for topic in TOPICS)


def sentence() -> str:
    """Returns a sentence in Markdown that names all topics."""
    names = [f"`{_PREFIX}{topic}`" for topic in TOPICS]
    return f"There is a topic for each kind of event: {', '.join(names[:-1])} and {names[-1]}."
