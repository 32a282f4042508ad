"""An error that nobody expected: a defect of Leadview. It is reported without values, which may be of a payload."""

import logging
import traceback

from schemas import words

logger = logging.getLogger(__name__)


def report(what: str, error: BaseException, **fields: object) -> str:
    """Log an error with its traceback. Returns the same in words, for health checks and dead letters.

    The message of the error may contain a value of a record, so only its type and its place are logged.
    """
    logger.error(
        "%s failed, which is a defect of Leadview: please report it with this log line",
        what,
        extra=fields | {"error": type(error).__name__, "traceback": _frames(error)},
    )
    return words.defect(what, type(error).__name__)


def _frames(error: BaseException | None) -> list[str]:
    """Returns where an error was raised, with the errors that it followed from first."""
    if error is None:
        return []
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = [frame.rstrip() for frame in traceback.format_tb(error.__traceback__)]
    return [*_frames(before), *frames, type(error).__name__]
