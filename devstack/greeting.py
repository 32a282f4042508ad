"""What the user sees first: the base URL of Leadview, a valid API key, and commands to paste."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from devstack.sample import Tenant
from devstack.sandbox import Persona

_PATH = "/api/v1/ext"
_ROOT = Path(__file__).parents[1]


def greeting(
    base_url: str,
    tenants: Sequence[Tenant],
    *,
    limits: str,
    etag: str | None = None,
    addresses: Mapping[str, str] = MappingProxyType({}),
    variables: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
    personas: Sequence[Persona] = (),
    notes: Sequence[str] = (),
) -> str:
    """Returns the text for the first of `tenants`. `etag` is the present ETag of its contact.

    `addresses` are shown by name. `variables` are the settings that the projector's commands need on this machine; None
    if they cannot run here. `hidden` are those that have to be set as well. `personas` are the keys of the sandbox.
    `notes` stand below the addresses.
    """
    tenant, other = tenants[0], tenants[1]
    rows = {
        "base URL": base_url,
        "API key": tenant.api_key,
        "of organization": tenant.organization_id,
        "limits": limits,
        **addresses,
    }
    width = max(map(len, rows)) + 2
    lines = [
        *(f"  {name:<{width}} {value}" for name, value in rows.items()),
        *(f"  {note}" for note in notes),
        *(_sandbox(personas) if personas else ()),
        "",
        "Commands to paste into another terminal:",
        *_lines(base_url, tenant, other, etag),
    ]
    if variables is not None:
        if hidden:
            lines += ("", f"# secrets are not printed: set {', '.join(hidden)} in that terminal first")
        lines += ("", "# whether all is well", _status(variables, addresses["metrics, api"]))
        shown = {"API": base_url, "API_KEY": tenant.api_key, "LEAD_ID": tenant.lead_id}
        shown |= {"ORGANIZATION": tenant.organization_id, "KAFKA": addresses["Kafka"]}
        lines += ("", "# with this, the commands of the documentation work in that terminal, too")
        lines.append(" ".join(["export", *_settings({**shown, **variables})]))
        lines += ("", "# and with this, those of operators; it puts the Python of Leadview first on the PATH", _enter())
    return "\n".join(lines)


def _sandbox(personas: Sequence[Persona]) -> Iterator[str]:
    """Yields the keys of the sandbox, and what their requests get."""
    yield ""
    yield "This is the sandbox: keys, ids and documents are the same on every machine, and docs/sandbox.md lists them."
    yield "NOT FOR PRODUCTION: everyone knows these keys."
    yield ""
    width = max(len(persona.name) for persona in personas) + 2
    yield from (f"  {persona.name:<{width}} {persona.api_key}  {persona.answer}" for persona in personas)


def _status(variables: Mapping[str, str], api_metrics: str) -> str:
    """Returns a command that works in every folder. It asks the API as well."""
    python_path = f"PYTHONPATH={shlex.quote(str(_ROOT))}"
    words = [sys.executable, "-m leadview status --api-metrics", shlex.quote(api_metrics)]
    return " ".join([*_settings(variables), python_path, *words])


def _enter() -> str:
    programs = shlex.quote(str(Path(sys.executable).parent))
    leadview = '; leadview() { python -m leadview "$@"; }'
    return f'cd {shlex.quote(str(_ROOT))} && export PATH={programs}:"$PATH"{leadview}'


def _settings(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]


def _lines(base_url: str, tenant: Tenant, other: Tenant, etag: str | None) -> Iterator[str]:
    def curl(what: str, path: str, *options: str) -> Iterator[str]:
        yield from ("", f"# {what}")
        yield " ".join(["curl -i -w '\\n'", *options, f"{base_url}{_PATH}{path}"])

    key = f"-H 'Authorization: Bearer {tenant.api_key}'"
    contact = f"/contacts/{tenant.contact_id}"
    yield from curl("a lead, with the summary of its contact", f"/leads/{tenant.lead_id}", key)
    yield from curl("the contact, with its custom fields", contact, key)
    if etag:
        condition = f"-H 'If-None-Match: {etag}'"
        yield from curl("304 Not Modified, as long as the contact does not change", contact, key, condition)
    yield from curl("a lead of another organization: 404, as if it did not exist", f"/leads/{other.lead_id}", key)
    yield from curl("the description of the API (OpenAPI 3.1), without a key", "/openapi.json")
