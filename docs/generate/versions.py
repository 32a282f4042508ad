"""The versions of others that Leadview supports. docs/production.md shows them, and `make versions` tests them."""

from typing import Literal, NamedTuple

Program = Literal["Python", "Redis", "Valkey", "Kafka"]


class Version(NamedTuple):
    """A version that is supported."""

    program: Program
    number: str
    """As far as it is promised: any version that begins with it."""
    image: str = ""
    """The image from which the workflow takes a server's program."""
    exact: str = ""
    """The version of the jars that Maven fetches."""

    def __str__(self) -> str:
        return f"{self.program} {self.number}"


VERSIONS = (
    *(Version("Python", number) for number in ("3.11", "3.12", "3.13", "3.14")),
    Version("Redis", "6.2", image="redis:6.2"),
    Version("Redis", "7", image="redis:7.4"),
    Version("Redis", "8", image="redis:8"),
    Version("Valkey", "8", image="valkey/valkey:8.1"),
    Version("Valkey", "9", image="valkey/valkey:9"),
    Version("Kafka", "3.9", exact="3.9.1"),
    Version("Kafka", "4.1", exact="4.1.0"),
    Version("Kafka", "4.2", exact="4.2.2"),
)
