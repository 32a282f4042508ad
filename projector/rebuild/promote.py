"""Which generation is served: verify and promote the next one, or roll back to the former one.

Both change one pointer in Redis.
"""

import time

import msgspec

from projector.errors import Refused
from projector.ledger import generations
from projector.ledger.generations import Registry
from projector.redis.calls import Command
from projector.redis.store import Store
from projector.verify import compare
from projector.verify.report import Report
from schemas import names


class Criteria(msgspec.Struct, frozen=True):
    """The conditions under which the next generation may be promoted.

    `sample` is the share of the documents to compare (above 0, at most 1), `allowed` are the fields that may differ
    (`leads.quote_total`), and `threshold` is how many documents may differ in other fields.
    """

    sample: float = 1.0
    allowed: frozenset[str] = frozenset()
    threshold: int = 0


class Flip(msgspec.Struct, frozen=True):
    """A change of the live generation. `previous` was live before, `live` is live now."""

    previous: int
    live: int


class Promoted(msgspec.Struct, frozen=True):
    """The outcome of a promotion. `flip` is None if the comparison did not pass: then nothing was promoted."""

    report: Report
    flip: Flip | None


async def verify_and_promote(store: Store, criteria: Criteria, *, force: bool = False) -> Promoted:
    """Compare the next generation with the live one, and promote it if it passes or with `force`.

    Raises Refused or Unavailable.
    """
    registry = await generations.read(store)
    generation = complete_next(registry)
    report = await _verify(store, registry, generation, criteria)
    if not report.passes(criteria.threshold) and not force:
        return Promoted(report, None)
    return Promoted(report, await promote(store, generation))


async def verify_next(store: Store, criteria: Criteria) -> Report:
    """Compare the next generation with the live one, and record the time if it passes.

    Raises Refused or Unavailable.
    """
    registry = await generations.read(store)
    return await _verify(store, registry, complete_next(registry), criteria)


async def _verify(store: Store, registry: Registry, generation: int, criteria: Criteria) -> Report:
    report = await compare.compare(store, registry.live, generation, sample=criteria.sample, allowed=criteria.allowed)
    if report.passes(criteria.threshold):
        description = msgspec.structs.replace(registry.descriptions[generation], verified_at=generations.now())
        await generations.amend(store, generation, description)
    return report


async def promote(store: Store, generation: int) -> Flip:
    """Promote `generation`. Returns the previous and the new live generation. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    if complete_next(registry) != generation:
        raise Refused(f"Generation {generation} is no longer the next one: check `status`, then run `promote` again.")
    return await _flip(store, registry.live, generation)


async def rollback(store: Store) -> Flip:
    """Make the former generation live again. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    if registry.previous not in registry.written_generations:
        raise Refused("There is no former generation to return to: it was dropped, or nothing was ever promoted.")
    return await _flip(store, registry.live, registry.previous)


def complete_next(registry: Registry) -> int:
    """Returns the generation that may be promoted. Raises Refused if there is none."""
    generation = registry.next
    if not generation:
        hint = f"; `rollback` serves generation {registry.previous} again" if registry.previous > registry.live else ""
        raise Refused(f"There is no next generation: `rebuild` creates one{hint}.")
    if not registry.descriptions[generation].complete:
        raise Refused(f"Generation {generation} is not complete: run `rebuild` again, it resumes where it stopped.")
    return generation


async def _flip(store: Store, live: int, to: int) -> Flip:
    arguments = [b"%d" % live, b"%d" % to, b"%d" % int(time.time() * 1000)]
    [flipped] = await store.run([Command("flip", [names.GENERATIONS], arguments)])
    if not flipped:
        raise Refused("Another command has just changed the generations: check `status`, then try again.")
    return Flip(live, to)
