"""Asks what an external tool asks, with a generated client, and prints what came.

It runs in the environment of the generated clients, not in that of Leadview.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import orjson


class Answer(NamedTuple):
    """What a client returned: the document or the body of an error, as the client has read it."""

    status: int
    tag: str | None
    body: object


Read = Callable[[str, str | None, str, str | None], Answer]
"""Reads a document with the URL of the API, a key, an id and an ETag."""


def use(read_lead: Read, read_contact: Read, fields: Callable[[object], object], error: type) -> None:
    """Does what the argument of the program asks for. `fields` returns the custom fields of a contact, and `error` is
    the model of errors.
    """
    order = orjson.loads(sys.argv[1])
    url, key, lead, contact = (order[name] for name in ("url", "key", "lead", "contact"))

    def show_lead(name: str, answer: Answer) -> None:
        body = answer.body
        stage = getattr(body.stage, "value", body.stage)
        show(
            name,
            answer,
            stage,
            body.events[0].event_timezone,
            body.quote_total,
            body.notes_count,
            body.source["utm_source"],
        )

    def refused(name: str, answer: Answer) -> None:
        assert isinstance(answer.body, error), answer
        show(name, answer, answer.body.error)

    first = read_lead(url, key, lead, None)
    show_lead("200", first)
    show("304", read_lead(url, key, lead, first.tag))
    answer = read_contact(url, key, contact, None)
    show("contact", answer, fields(answer.body))
    refused("404", read_lead(url, key, contact, None))
    refused("401", read_lead(url, None, lead, None))
    refused("403", read_lead(url, order["disabled"], lead, None))

    answers = iter(lambda: read_lead(url, order["limited"], lead, None), None)
    limited = next(answer for answer in answers if answer.status == 429)
    policies = [getattr(policy, "value", policy) for policy in limited.body.violated_policies]
    show("429", limited, limited.body.error, policies)
    time.sleep(limited.body.retry_after)
    show("retry", read_lead(url, order["limited"], lead, None))

    away = read_lead(order["away"], key, lead, None)
    show("503", away, away.body.error, away.body.retry_after > 0)

    newer = order["newer"]
    show_lead("newer", read_lead(newer, key, lead, None))
    answer = read_contact(newer, key, contact, None)
    show("newer contact", answer, fields(answer.body))
    refused("newer error", read_lead(newer, key, contact, None))


def show(name: str, answer: Answer, *values: object) -> None:
    print(orjson.dumps([name, answer.status, *values]).decode())
