"""What an operator has accepted in one partition, and its compact text."""

import msgspec

from projector.accepted.ranges import Ranges


class Acceptance(msgspec.Struct, frozen=True):
    """Bad records that an operator has accepted with one command."""

    offsets: Ranges
    time: int
    """When they were accepted, in milliseconds since 1970."""
    note: str
    """Why they were accepted, in the words of the operator."""
    dropped: bool = False
    """The operator has dropped their dead letters since: no dead letters are stored for them again."""


class Accepted(msgspec.Struct, frozen=True):
    """The accepted bad records of one partition. No offset is in two acceptances, or in one and in `dropped`."""

    acceptances: tuple[Acceptance, ...] = ()
    dropped: Ranges = Ranges()
    """Accepted records whose dead letters the operator has dropped."""

    @classmethod
    def parse(cls, text: str) -> "Accepted":
        """Parse what `text` returned, or an empty text. Raises ValueError."""
        if not text:
            return cls()
        stored = msgspec.json.decode(text, type=_Stored)
        acceptances = (Acceptance(Ranges.parse(offsets), time, note) for offsets, time, note in stored.accepted)
        return cls(tuple(acceptances), Ranges.parse(stored.dropped))

    @property
    def text(self) -> str:
        """Compact JSON: `{"accepted":[["120-420,500",1767225600000,"the note"]],"dropped":"7"}`."""
        accepted = [(str(acceptance.offsets), acceptance.time, acceptance.note) for acceptance in self.acceptances]
        return msgspec.json.encode(_Stored(accepted, str(self.dropped))).decode()

    @property
    def offsets(self) -> Ranges:
        """All accepted offsets."""
        return Ranges.of(pair for ranges in self._all() for pair in ranges.pairs)

    def find(self, offset: int) -> Acceptance | None:
        """Returns the acceptance that contains an offset, or None."""
        if offset in self.dropped:
            return Acceptance(self.dropped, 0, "", dropped=True)
        return next((acceptance for acceptance in self.acceptances if offset in acceptance.offsets), None)

    def accept(self, offsets: Ranges, time: int, note: str) -> "Accepted":
        """Returns this with one more acceptance, which replaces earlier ones of the same offsets."""
        return Accepted((*self._without(offsets), Acceptance(offsets, time, note)), self.dropped - offsets)

    def drop(self, offsets: Ranges) -> "Accepted":
        """Returns this with the accepted ones among these offsets as dropped ones. The others are ignored."""
        return Accepted(self._without(offsets), self.dropped | offsets & self.offsets)

    def _without(self, offsets: Ranges) -> tuple[Acceptance, ...]:
        rest = (msgspec.structs.replace(one, offsets=one.offsets - offsets) for one in self.acceptances)
        return tuple(acceptance for acceptance in rest if acceptance.offsets)

    def _all(self) -> tuple[Ranges, ...]:
        return (*(acceptance.offsets for acceptance in self.acceptances), self.dropped)


class _Stored(msgspec.Struct, omit_defaults=True):
    """`accepted` has offsets, time and note of each acceptance."""

    accepted: list[tuple[str, int, str]] = []
    dropped: str = ""
