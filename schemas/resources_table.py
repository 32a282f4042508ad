"""The README's table of resources, derived from their rows."""

from schemas.resources import AS_SPECIFIED, ROOT
from schemas.settings import ProjectorSettings

_HEAD = ("| resource | topic | endpoint | what the records are |", "|---|---|---|---|")


def table() -> str:
    """Returns the table in Markdown, with the default prefix of the topics."""
    prefix = ProjectorSettings().topic_prefix
    rows = (
        f"| {resource.noun} | `{prefix}{resource.topic}` | `GET {ROOT}/{resource.topic}/{{id}}` | {resource.summary} |"
        for resource in AS_SPECIFIED
    )
    return "\n".join((*_HEAD, *rows))
