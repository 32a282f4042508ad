"""A finding: what is not well, where it is, and what to do about it."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """What was found, and what to do about it.

    `page` is the page in `docs` that says more, with its section. `where` are the parts that do not work because of it:
    `kafka`, `projectors`, `redis`, `api`; the first one has to be repaired. `stops` says which lines apply nothing
    because of it: none, one, or all. `detail` is more about it, in whole sentences; then `command` is a line to paste.
    """

    what: str
    advice: str
    page: str = "status.md"
    where: tuple[str, ...] = ()
    stops: Literal["", "line", "all"] = ""
    detail: str = ""
    command: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.what}: {self.advice}", self.more) if part)

    @property
    def more(self) -> str:
        """What the verdict leaves out, because it would be too long for one line."""
        return " ".join(part for part in (self.detail, self.command) if part)


def headline(problems: list[Finding]) -> str:
    """Returns the verdict in one line. It says what to do if there is one problem; each of several has its own line."""
    match problems:
        case []:
            return "all is well"
        case [problem]:
            return f"not well: {problem.what}: {problem.advice}"
    return f"not well: {'; '.join(problem.what for problem in problems)}"
