"""Why a key or an organization is refused, in words. Pure."""

from projector.commands.refusal import Refusal
from projector.commands.show_access import StoredKey, StoredOrganization
from projector.commands.show_view import coordinates, utc
from projector.console.answer import Answer, Fact, State
from projector.console.story import Applied, events
from projector.console.topics import Found
from schemas.layouts import Head

_PAGE = "runbook.md#why-is-a-key-refused"


def of_key(key: StoredKey, topic: str) -> Answer:
    """Returns what a request with this key gets, and why. `topic` is that of the API keys."""
    verdict, state = _verdict(key.refusal, "A request with this key")
    facts = [Fact("SHA-256", key.hash or "not known")]
    for each in key.api_keys:
        expiry = f", expires at {utc(each.expires_at)}" if each.expires_at else ""
        facts.append(Fact(f"API key {each.id}", f"{each.status}{expiry}; {_origin(each.event, topic)}"))
    if key.organization:
        facts += _organization(key.organization)
    facts += [Fact("dead letter", f"{letter.field}: {letter.reason}") for letter in key.dead_letters]
    return Answer("API key", verdict, state, _PAGE, facts)


def of_organization(found: StoredOrganization, topic: str, published: Found, applied: Applied) -> Answer:
    """Returns what a valid key of this organization gets, and why. `topic` is that of the organizations."""
    verdict, state = _verdict(found.refusal, "A request with a valid key of this organization")
    if found.job_due == "erase":
        verdict += " Its keys and documents are being deleted."
    facts = [*_organization(found), Fact("origin", _origin(found.event, topic))]
    facts += [Fact("dead letter", f"{letter.field}: {letter.reason}") for letter in found.dead_letters]
    told = events(published.records, applied)
    return Answer(f"organization {found.organization}", verdict, state, _PAGE, facts, told)


def _verdict(refusal: Refusal | None, subject: str) -> tuple[str, State]:
    if refusal is None:
        return f"{subject} passes all checks of access.", "well"
    row = "" if refusal.row == "-" else f" (row {refusal.row} of the table of answers)"
    return f"{subject} is refused with {refusal.status} {refusal.error}{row}. {refusal.why}", "wrong"


def _organization(found: StoredOrganization) -> list[Fact]:
    limits = [
        Fact(
            f"limit of the {bucket.scope}",
            f"{bucket.quota:,} requests in {bucket.window} s{'' if bucket.own else ' (of the settings)'}, "
            f"{bucket.remaining:,} left",
        )
        for bucket in found.limits
    ]
    return [
        Fact("organization", found.organization),
        Fact("API access", "on" if found.api_access else "off"),
        *limits,
    ]


def _origin(head: Head | None, topic: str) -> str:
    return coordinates(head, topic).replace("[yellow]", "").replace("[/]", "")
