"""The commands `show organization` and `show key`."""

import argparse
import getpass
import os
import sys

from rich.console import Console

from projector.commands import show_access
from projector.commands.operator import Operator
from projector.commands.refusal import Bucket, Refusal, malformed, missing
from projector.commands.show_access import Place, StoredKey, StoredOrganization
from projector.commands.show_view import coordinates, show_dead_letters, utc
from projector.errors import Refused
from schemas.resources import API_KEY, ORGANIZATION
from schemas.settings import ApiSettings, SettingsError, load

_MAX_INPUT = 4096


async def run_organization(arguments: argparse.Namespace, operator: Operator) -> int:
    """`show organization`: what Redis holds of it, and why the API would refuse its keys."""
    found = await show_access.read_organization(operator.store, _settings(), arguments.organization)
    if operator.json:
        operator.print_json(found)
    else:
        _print_organization(found, operator.settings.topic_prefix, operator.console)
        _print_verdict(found.refusal, "a valid key of this organization", operator.console)
        show_dead_letters(found.dead_letters, operator.console)
    return 0


async def run_key(arguments: argparse.Namespace, operator: Operator) -> int:
    """`show key`: by the id of the API key, by the hash of the key, or by the key on standard input."""
    form, text = arguments.key[0]
    if form == "-":
        place = show_access.parse_key(text := _read_standard_input())
        places = [place] if isinstance(place, Place) else []
        refusal = (malformed(place) if text.strip() else missing()) if isinstance(place, str) else None
    else:
        places = await show_access.find(operator.store, **{f"key_{form}": text})
        refusal = None
    del text
    found = [await show_access.read_key(operator.store, _settings(), place) for place in places]
    if not found:
        key_hash = arguments.key[0][1] if form == "hash" else None
        found = [StoredKey(key_hash, None, [], refusal or await show_access.not_stored(operator.store))]
    if operator.json:
        operator.print_json(found)
        return 0
    for each in found:
        _print_key(each, operator.settings.topic_prefix, operator.console)
    return 0


def _settings() -> ApiSettings:
    """The settings of the API have the limits that apply to an organization without limits of its own."""
    try:
        return load(ApiSettings, os.environ)
    except SettingsError as error:
        raise Refused(str(error)) from None


def _read_standard_input() -> str:
    return getpass.getpass("API key (it is not shown): ") if sys.stdin.isatty() else sys.stdin.read(_MAX_INPUT)


def _print_key(key: StoredKey, topic_prefix: str, console: Console) -> None:
    console.print(f"[bold]key[/]  SHA-256 {key.hash or 'not known'}", soft_wrap=True)
    for api_key in key.api_keys:
        expiry = f", expires at {utc(api_key.expires_at)}" if api_key.expires_at else ""
        console.print(f"  API key {api_key.id}: {api_key.status}{expiry}", soft_wrap=True)
        console.print(f"    event  {coordinates(api_key.event, f'{topic_prefix}{API_KEY.topic}')}", soft_wrap=True)
    if key.organization:
        _print_organization(key.organization, topic_prefix, console)
    _print_verdict(key.refusal, "this key", console)
    show_dead_letters(key.dead_letters, console)


def _print_organization(found: StoredOrganization, topic_prefix: str, console: Console) -> None:
    console.print(f"[bold]organization {found.organization}[/]  {found.name}", soft_wrap=True)
    console.print(f"  event       {coordinates(found.event, f'{topic_prefix}{ORGANIZATION.topic}')}", soft_wrap=True)
    console.print(f"  API access  {'on' if found.api_access else 'off'}")
    for bucket in found.limits:
        console.print(f"  limit       {_limit(bucket)}")
    if found.job_due:
        console.print(f"  job due     {found.job_due}")


def _limit(bucket: Bucket) -> str:
    origin = "" if bucket.own else " (of the settings)"
    return f"{bucket.scope}: {bucket.quota} requests in {bucket.window} s{origin}, {bucket.remaining} left"


def _print_verdict(refusal: Refusal | None, subject: str, console: Console) -> None:
    if refusal is None:
        console.print(f"[green]accepted[/]: a request with {subject} passes all checks of access")
        return
    row = "" if refusal.row == "-" else f" (row {refusal.row} of the table of answers)"
    console.print(f"[red]refused[/] with {refusal.status} {refusal.error}{row}", soft_wrap=True)
    console.print(f"  {refusal.why}", markup=False, soft_wrap=True)
