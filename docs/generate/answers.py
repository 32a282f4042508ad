"""The answers of the API that pages show: its examples have an ETag and a length, which follow from their fields."""

import re
from functools import cache

import msgspec
import orjson
from msgspec.structs import replace

from schemas import examples
from schemas.bodies import SUMMARY
from schemas.error_body import PROBLEMS
from schemas.layouts import NO_CONTACT, content_hash
from schemas.resources import CONTACT, LEAD, Resource

REQUEST_ID = "01982f6ab4c87d1e9f3a52b6c0d4e8f7"
_ETAG = re.compile(r'W/"[0-9a-f]{24}"')
_LENGTH = re.compile(r"(?<=Content-Length: )\d+")


@cache
def etag(resource: Resource) -> str:
    """Returns the ETag of the example of a resource, as the API sends it (`schemas.layouts`)."""
    hashed, summary = resource.example, NO_CONTACT
    if resource in (CONTACT, LEAD):
        summary = content_hash(msgspec.json.encode(examples.LEAD.contact))
    if resource is LEAD:
        hashed = replace(hashed, contact=msgspec.Raw(SUMMARY))
    return f'W/"{content_hash(msgspec.json.encode(hashed)).hex()}{summary.hex()}"'


def with_answers(page: str) -> str:
    """Returns a page with the ETags and lengths of the examples: in a line that names a contact its own, in every other
    line those of the lead.
    """
    lines = []
    for line in page.splitlines(keepends=True):
        resource = CONTACT if "/contacts/" in line else LEAD
        lines.append(_LENGTH.sub(str(len(msgspec.json.encode(resource.example))), _ETAG.sub(etag(resource), line)))
    return "".join(lines)


def error() -> str:
    """Returns the body of an error, as a block of Markdown."""
    [problem] = (problem for problem in PROBLEMS if problem.code == "invalid_id")
    text = {"error": problem.code, "message": problem.message, "status": problem.status, "request_id": REQUEST_ID}
    return f"```json\n{orjson.dumps(text, option=orjson.OPT_INDENT_2).decode()}\n```"
