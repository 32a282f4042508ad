"""What the user sees first: the base URL of Leadview, a valid API key, and commands to paste."""

from collections.abc import Iterator, Sequence

from devstack.sample import Tenant

_PATH = "/api/v1/ext"


def greeting(base_url: str, tenants: Sequence[Tenant], *, limits: str, etag: str | None = None) -> str:
    """Returns the text for the first of `tenants`. `etag` is the present ETag of its contact."""
    tenant, other = tenants[0], tenants[1]
    lines = [
        f"  base URL   {base_url}",
        f"  API key    {tenant.api_key}",
        f"  limits     {limits}",
        "",
        "Commands to paste into another terminal:",
        *_lines(base_url, tenant, other, etag),
    ]
    return "\n".join(lines)


def _lines(base_url: str, tenant: Tenant, other: Tenant, etag: str | None) -> Iterator[str]:
    def curl(what: str, path: str, *options: str) -> Iterator[str]:
        yield from ("", f"# {what}")
        yield " ".join(["curl -i", *options, f"{base_url}{_PATH}{path}"])

    key = f"-H 'Authorization: Bearer {tenant.api_key}'"
    contact = f"/contacts/{tenant.contact_id}"
    yield from curl("a lead, with the summary of its contact", f"/leads/{tenant.lead_id}", key)
    yield from curl("the contact, with its custom fields", contact, key)
    if etag:
        yield from curl("304 Not Modified, as long as the contact does not change", contact, key, _condition(etag))
    yield from curl("a lead of another organization: 404, as if it did not exist", f"/leads/{other.lead_id}", key)
    yield from curl("the description of the API (OpenAPI 3.1), without a key", "/openapi.json")


def _condition(etag: str) -> str:
    return f"-H 'If-None-Match: {etag}'"
