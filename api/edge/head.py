"""The size of a request head that is being received."""

_HEAD_END = b"\r\n\r\n"


class HeadSize:
    """Counts the bytes of an unfinished head, part by part. The parser only tells that a head began or ended somewhere
    in the part that it was fed; the owner of this object sets both flags accordingly.
    """

    __slots__ = ("began_in_part", "bytes", "unfinished")

    def __init__(self) -> None:
        self.bytes = 0
        self.unfinished = False
        """A head began and has not ended yet."""
        self.began_in_part = False
        """It began in the part that is being parsed."""

    def add(self, part: bytes) -> None:
        """Count a part that was parsed."""
        if not self.unfinished:
            self.bytes = 0
        elif self.began_in_part:
            # No body precedes this head, because requests with a body are refused: it begins where the last head ends.
            self.bytes = len(part) - (part.rfind(_HEAD_END) + len(_HEAD_END) if _HEAD_END in part else 0)
        else:
            self.bytes += len(part)
        self.began_in_part = False
