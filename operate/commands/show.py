"""`show`: what Redis holds of an entity, an organization or a key, and why the API would refuse a request for it."""

import argparse
import os

from rich.console import Console

from operate.commands.argument_types import key, read_key, uuid
from operate.commands.operator import Operator
from operate.explain import stored
from operate.explain.explainer import Explainer, Search
from operate.explain.stored import Refusal, StoredKey
from operate.explain.words import Answer, answer, records_to_json, to_json
from schemas import api_keys, names
from schemas.resources import BY_NOUN
from schemas.settings import ApiSettings, load

_STYLES = {"well": "green", "wrong": "red", "waits": "yellow", "plain": ""}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the kinds, and what names one of each."""
    kinds = command.add_subparsers(dest="kind", required=True, metavar="kind")
    for noun in BY_NOUN:
        entity = kinds.add_parser(noun, help=f"the document of a {noun}, and the events that wrote it")
        entity.add_argument("organization", type=uuid)
        entity.add_argument("id", type=uuid)
        _add_options(entity)
    organization = kinds.add_parser("organization", help="its API access, and why its keys would be refused")
    organization.add_argument("organization", type=uuid)
    _add_options(organization)
    one = kinds.add_parser("key", help="what a key may read, and why it would be refused; no key is ever printed")
    # A list, so that no further word, which may be a key, is quoted in a message of argparse.
    one.add_argument(
        "key",
        nargs="+",
        type=key,
        metavar="id | hash | -",
        help="the id of the API key, the SHA-256 of the key in hex, or - to read the key from standard input",
    )
    one.add_argument("--json", action="store_true")


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true")
    command.add_argument(
        "--records", action="store_true", help="list its records that Kafka holds, too: reads the whole topic"
    )


def check_arguments(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit the process with code 2 if more than one key is named."""
    if arguments.kind == "key" and len(arguments.key) > 1:
        parser.error("name one key")


async def run_show(arguments: argparse.Namespace, operator: Operator) -> int:
    """`show lead`, `show contact`, `show organization` and `show key`. Kafka is needed for `--records` only."""
    explainer = Explainer(operator.store, operator.settings, load(ApiSettings, os.environ))
    if arguments.kind == "key":
        keys = await _keys(arguments, operator, explainer)
        shown: object = [to_json(each) for each in keys]
        answers = [answer(each, operator.settings.topic_prefix, show_documents=True) for each in keys]
    else:
        search: Search = "all" if arguments.records else "none"
        found = await (
            explainer.organization(arguments.organization, search)
            if arguments.kind == "organization"
            else explainer.entity(BY_NOUN[arguments.kind], arguments.organization, arguments.id, search)
        )
        shown = to_json(found.stored) | records_to_json(found)
        answers = [answer(found, operator.settings.topic_prefix, show_documents=True)]
    if operator.json:
        operator.print_json(shown)
    else:
        for each in answers:
            _print(each, operator.console)
    return 0


async def _keys(arguments: argparse.Namespace, operator: Operator, explainer: Explainer) -> list[StoredKey]:
    """Returns what is known of the key: by the id of its API key, by its hash, or by its text on standard input. More
    than one is found only if the core product has given two organizations the same key.
    """
    form, text = arguments.key[0]
    if form == "-":
        word = read_key()
        try:
            parsed = api_keys.parse(word)
        except api_keys.MalformedKey as error:
            refusal = Refusal("malformed", fault=str(error)) if word else Refusal("no key")
            return [StoredKey(None, None, [], refusal)]
        return [await explainer.key(names.tagged(parsed.organization_tag), key_hash=parsed.hash)]
    asked = {"key_hash" if form == "hash" else "id": text}
    owners = {owner async for owner in stored.search(operator.store, **asked)}
    found = [await explainer.key(owner, **asked) for owner in sorted(owners)]
    return found or [await stored.no_such_key(operator.store, asked.get("key_hash"))]


def _print(shown: Answer, console: Console) -> None:
    console.print(shown.title, style="bold", markup=False, soft_wrap=True)
    console.print(shown.verdict, style=_STYLES[shown.state], markup=False, soft_wrap=True)
    width = max(len(fact.name) for fact in shown.facts)
    for fact in shown.facts:
        console.print(f"  {fact.name:{width}}  {fact.value}", markup=False, soft_wrap=True)
    for event in shown.events:
        version = "" if event.version is None else f", version {event.version}"
        console.print(f"  {event.record} of {event.time}{version} {event.outcome}.", markup=False, soft_wrap=True)
    if shown.note:
        console.print(shown.note, markup=False, soft_wrap=True)
    for document in shown.documents:
        console.print(document.title, style="bold", markup=False, soft_wrap=True)
        console.print_json(data=document.value)
