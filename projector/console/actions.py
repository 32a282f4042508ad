"""What an operator may do on the page, with --allow-actions: compare, promote, roll back, drop. One at a time."""

import asyncio
import logging
import time
from typing import Literal, assert_never

import msgspec

from projector import defect
from projector.errors import ProjectorError, Refused
from projector.kafka.reader import held_back
from projector.ledger import copies, history, writers
from projector.ledger.history import Act
from projector.operate.words import say_unread
from projector.rebuild import generations
from projector.rebuild.generations import Criteria
from projector.redis.store import Store
from schemas.control import number_of
from schemas.resources import RESOURCES
from schemas.settings import ProjectorSettings

logger = logging.getLogger(__name__)

Verb = Literal["compare", "promote", "rollback", "drop"]
Ended = Literal["done", "refused"]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for. `generation` is the number that the operator has typed."""

    verb: Verb
    generation: int


class Action(msgspec.Struct, frozen=True):
    """What was asked for last, by whom, when (ms since 1970), and what came of it. `by_field` has the number of
    documents by the field that differs, if any were compared.
    """

    verb: Verb
    generation: int
    who: str
    at: int
    state: Literal["under way", "done", "refused"]
    text: str = ""
    by_field: dict[str, int] = {}


class Actions:
    """Runs one action after the other. Each leaves two log lines: when it begins and when it has ended."""

    def __init__(self, store: Store, settings: ProjectorSettings) -> None:
        self._store = store
        self._settings = settings
        self._running: asyncio.Task[None] | None = None
        self.newest: Action | None = None

    def begin(self, wanted: Wanted, who: str) -> None:
        """Start an action. Raises Refused if another one is under way."""
        if self._running and not self._running.done():
            raise Refused("Another action is under way. Wait until it has ended.")
        self.newest = Action(wanted.verb, wanted.generation, who, int(time.time() * 1000), "under way")
        logger.warning("action of the console", extra=_fields(self.newest))
        self._running = asyncio.create_task(self._run(self.newest))

    async def close(self) -> None:
        """Cancel what is under way. A drop that has begun is continued by a projector."""
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, action: Action) -> None:
        state: Ended = "refused"
        by_field: dict[str, int] = {}
        try:
            state, text, by_field = await self._do(action.verb, action.generation)
        except ProjectorError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - the page has to say it
            text = defect.report("an action of the console", error)
        self.newest = msgspec.structs.replace(action, state=state, text=text, by_field=by_field)
        logger.warning("action of the console has ended", extra={**_fields(action), "result": state, "text": text})
        if action.verb != "compare":
            reason = text if state == "refused" else ""
            act = Act(action.verb, [str(action.generation)], f"{action.who} (console)", state, reason)
            await history.note(self._store, act)

    async def _do(self, verb: Verb, generation: int) -> tuple[Ended, str, dict[str, int]]:
        """Returns what came of it, and `Action.by_field`. Raises Refused and Unavailable."""
        record = await copies.require(self._store)
        if verb in ("compare", "promote") and number_of(generations.complete_next(record)) != generation:
            raise Refused(f"Generation {generation} is not the next one.")
        match verb:
            case "compare":
                held = await held_back(self._settings, RESOURCES)
                _, report = await generations.verify_next(self._store, Criteria(), held)
                differ = f"{report.differences:,} differ" if report.differences else "none differs"
                compared = f"{sum(report.checked.values()):,} documents were compared, and {differ}."
                missed = say_unread(report.unread) if report.unread else ""
                return "done", " ".join(filter(None, (compared, missed))), report.by_field
            case "promote":
                held = await held_back(self._settings, RESOURCES)
                promoted = await generations.verify_and_promote(self._store, Criteria(), held)
                differing, flip = promoted.report.by_field, promoted.flip
                if flip is None:
                    if promoted.report.unread:
                        return "refused", f"Not promoted: {say_unread(promoted.report.unread)}", differing
                    advice = "If that is meant, run `promote` with --allow or --force on the command line."
                    return (
                        "refused",
                        f"Not promoted: {promoted.report.differences:,} documents differ. {advice}",
                        differing,
                    )
                return (
                    "done",
                    f"Generation {flip.live} is served instead of {flip.previous}, which is kept current.",
                    differing,
                )
            case "rollback":
                if record.state.previous is None or number_of(record.state.previous) != generation:
                    raise Refused(f"Generation {generation} is not the former one, to which a rollback returns.")
                flip = await generations.rollback(self._store)
                return "done", f"Generation {flip.live} is served again instead of {flip.previous}.", {}
            case "drop":
                async with writers.writing(self._settings, "drop") as writing:
                    dropped = await generations.drop(writing, generation)
                return "done", f"Generation {dropped.generation} is dropped: {dropped.keys:,} keys were deleted.", {}
        assert_never(verb)


def _fields(action: Action) -> dict[str, object]:
    """Returns what both log lines say."""
    return {"action": action.verb, "generation": action.generation, "who": action.who}
