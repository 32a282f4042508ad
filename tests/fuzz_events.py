"""Coverage-guided fuzzing of event bytes, for as long as one likes: `python -m tests.fuzz_events [seconds]`.

Not a part of the tests, and not in the requirements: `pip install atheris` first. Needs Linux or macOS.
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

_CORPUS_MESSAGE = "atheris is not installed, so nothing was fuzzed: `pip install atheris`, then again"


def main(arguments: list[str]) -> int:
    """Fuzz for that many seconds (60). Ends with a traceback and the input where something does not hold."""
    if find_spec("atheris") is None:
        print(_CORPUS_MESSAGE)  # noqa: T201 - for a person
        return 0
    import atheris  # noqa: PLC0415

    with atheris.instrument_imports(include=["projector", "schemas"]):
        from tests.harness.hostile_events import MORSELS, VALID, check, tokens  # noqa: PLC0415

    def one_input(data: bytes) -> None:
        """The first bytes choose an event and what replaces which of its tokens; the rest is put into its middle."""
        chosen = atheris.FuzzedDataProvider(data)
        message = VALID[chosen.ConsumeIntInRange(0, len(VALID) - 1)]
        value = message.value or b""
        for _ in range(chosen.ConsumeIntInRange(0, 3)):
            places = tokens(value)
            if places:
                start, end = places[chosen.ConsumeIntInRange(0, len(places) - 1)]
                value = value[:start] + MORSELS[chosen.ConsumeIntInRange(0, len(MORSELS) - 1)] + value[end:]
        start = chosen.ConsumeIntInRange(0, len(value))
        end = chosen.ConsumeIntInRange(start, len(value))
        rest = chosen.ConsumeBytes(chosen.remaining_bytes())
        check(msgspec.structs.replace(message, value=value[:start] + rest + value[end if rest else start :]))

    seconds = arguments[0] if arguments else "60"
    with tempfile.TemporaryDirectory() as corpus:
        for place, message in enumerate(VALID):
            (Path(corpus) / str(place)).write_bytes(message.value or b"")
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={seconds}", "-max_len=8192", "-print_final_stats=1", corpus], one_input
        )
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
