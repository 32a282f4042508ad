"""How two states of the control record differ, in words for the log."""

from typing import NamedTuple

from projector.ledger.control import ControlRecord, State
from schemas.control import in_order, number_of


class Difference(NamedTuple):
    """`emptied`: Redis, or a shard of it, was emptied in between."""

    text: str
    emptied: bool = False


def difference(before: ControlRecord, after: ControlRecord) -> Difference | None:
    """Returns how the record has changed; None if it has not."""
    old, new = before.incarnations(), after.incarnations()
    emptied = sum(new[tag] != incarnation for tag, incarnation in old.items() if tag in new)
    if before.stamp.lineage != after.stamp.lineage or (emptied and emptied == len(old)):
        return Difference("Redis was emptied", emptied=True)
    if emptied:
        return Difference(f"{emptied} of the {len(new)} parts (shards) of Redis were emptied", emptied=True)
    if before.stamp == after.stamp:
        return None
    return Difference("; ".join(_changes(before.state, after.state)) or "the control record has changed")


def _changes(before: State, after: State) -> list[str]:
    """Returns which generations are served, written and dropped since."""
    found = [f"generation {number_of(after.live)} is served now"] if after.live != before.live else []
    found += [
        f"generation {number_of(new)} is written as well" for new in in_order({*after.written} - {*before.written})
    ]
    gone = ({*before.written} | {*before.dropping}) - {*after.written}
    found += [
        f"generation {number_of(old)} is being dropped"
        for old in in_order(gone & {*after.dropping} - {*before.dropping})
    ]
    found += [f"generation {number_of(old)} was dropped" for old in in_order(gone - {*after.dropping})]
    found += [f"topic {it.topic} {it.what}" for it in after.breaks if it not in before.breaks]
    if before.copies != after.copies:
        found.append("slots of the cluster have moved to another server")
    return found
