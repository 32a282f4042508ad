"""How to reach Kafka and log in: what has to be right before a client is created."""

from urllib.parse import urlsplit


def brokers(text: str) -> tuple[str, ...]:
    """Parses addresses of brokers, separated by commas. Raises ValueError."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not _is_address(part):
            raise ValueError(f"{part!r} is not an address: write host:port, several of them separated by commas")
    return found


def _is_address(part: str) -> bool:
    try:
        parts = urlsplit(f"//{part}")
        return bool(parts.hostname) and parts.port != 0 and parts.netloc == part
    except ValueError:
        return False
