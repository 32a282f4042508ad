"""Branches that matter: what worlds have to reach, or they show nothing. They are seen from outside, in what the
programs log and in what the scripts reply.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from api.redis import scripts as of_api
from projector.redis import scripts as of_projector
from runtime.redis.scripts import Script

_LOGGED = (
    "Redis has lost writes of this projector",
    "%s: the line reads again from the stored positions",
    "Redis or Kafka is not available: the line tries again",
    "a bad record became a dead letter",
    "a broker did not return records",
    "a shard is complete and is served now",
    "everything of a deleted organization was erased",
    "the records of a recreated organization were applied again",
    "no Kafka broker that was known has answered: the brokers were looked up again",
    "this projector leaves to others what one does for all",
    "Kafka may have removed deletions of a topic before they were read",
    "everything is as the topics say",
    "lost the connection to Redis",
    "cannot connect to Redis",
    "the heartbeat could not be stored",
    "the offsets for lag tools were not committed to Kafka",
    "a drop was finished",
)
_REPLIED = (
    ("a checkpoint is stored", "checkpoint", rb":1"),
    ("a checkpoint meets another control record", "checkpoint", rb"\*1\r\n\$5\r\nstamp"),
    ("a checkpoint meets a lower position", "checkpoint", rb"\*\d+\r\n\$\d+\r\n(?!stamp)"),
    ("a copy of the control record is created", "create_copy", rb":1"),
    ("the control record is changed", "change_control", rb":1"),
    ("a lock is held by another program", "take_lock", rb":0"),
    ("leads get a new summary", "resplice", rb":[1-9]"),
    ("a lead leaves its former contact", "leave_contact", rb""),
    ("a lead is stale", "put_leads", rb"\*\d+\r\n\$\d+\r\n[1-5]*0"),
    ("a lead of a deleted organization is dropped", "put_leads", rb"\*\d+\r\n\$\d+\r\n[013-5]*2"),
    ("a key of a deleted organization is dropped", "put_api_key", rb":2"),
    ("an organization is to be erased", "put_organization", rb":9"),
    ("an organization is to be read again", "put_organization", rb":17"),
    ("Data-As-Of is stored", "store_as_of", rb"\*4\r\n:\d+\r\n:[1-9]"),
    ("Data-As-Of is not known", "store_as_of", rb"\*4\r\n:\d+\r\n:0"),
    ("a request is refused", "serve", rb":401"),
    ("a request has no access", "serve", rb":403"),
    ("a request meets an organization that is read again", "serve", rb":503"),
    ("a script is not known to Redis", "", rb"-NOSCRIPT"),
)
_OF_SHA = {
    value.sha: name
    for module in (of_api, of_projector)
    for name, value in vars(module).items()
    if isinstance(value, Script)
}
_PATTERNS = [(name, script, re.compile(pattern)) for name, script, pattern in _REPLIED]
NAMES = frozenset((*_LOGGED, *(name for name, *_ in _REPLIED)))


class Reached(logging.Handler):
    """Counts in `times` how often each branch was reached."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if name := next((start for start in _LOGGED if record.msg.startswith(start)), None):
            self.times[name] += 1

    def look(self, words: Sequence[bytes], reply: Any) -> None:
        """Look at a command and its reply."""
        if words[0] == b"EVALSHA":
            called = _OF_SHA.get(words[1])
            for name, script, pattern in _PATTERNS:
                if script in ("", called) and pattern.match(reply):
                    self.times[name] += 1
