"""Finds out which server answers, Redis or Valkey, and whether it is new enough."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from runtime.redis.access import access, server_info
from runtime.redis.errors import TooOld
from schemas.settings import ApiSettings, RedisSettings

OLDEST = (6, 2)


class Version(Struct, frozen=True, order=True):
    """The server of one reply to INFO. Valkey says there which Redis it is compatible with, too."""

    name: str
    number: str

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Version":
        """Returns the version in a reply to `INFO server`."""
        if "valkey_version" in info:
            return cls("Valkey", str(info["valkey_version"]))
        return cls("Redis", str(info.get("redis_version", "?")))

    def check(self) -> None:
        """Raises TooOld. A number that cannot be read is not too old."""
        parts = tuple(int(part) for part in self.number.split(".") if part.isdecimal())
        if self.name == "Redis" and parts and parts < OLDEST:
            raise TooOld(f"{self} is too old: Leadview needs Redis 6.2 or later, or Valkey. Upgrade Redis.")

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


def check_version(settings: RedisSettings) -> None:
    """Raises TooOld and AddressError. A server that does not answer is not checked: its user will notice.

    A user who may not ask would leave a line in Redis's log of refusals, so the API asks only as the default user.
    """
    if isinstance(settings, ApiSettings) and access(settings).login.user() is not None:
        return
    Version.of(server_info(settings)).check()
