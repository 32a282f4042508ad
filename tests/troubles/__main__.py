"""`python -m tests.troubles FILE [NAME …]`: make each trouble, and write what every surface says as JSON."""

import argparse
import sys
import tempfile
from pathlib import Path

import orjson

from devstack.apache_kafka import ApacheKafka
from devstack.redis_server import RedisServer
from tests.troubles.installation import installation
from tests.troubles.troubles import TROUBLES, Place

_ROW = {"dead_letter_row": 3}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.troubles", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*", choices=[*TROUBLES, []], default=[])
    arguments = parser.parse_args()
    found = orjson.loads(arguments.file.read_bytes()) if arguments.file.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with ApacheKafka.start(directory / "kafka") as kafka:
            for name in arguments.names or TROUBLES:
                sys.stdout.write(f"{name}\n")
                sys.stdout.flush()
                with (
                    RedisServer.start(directory / f"redis-{name}", appendonly=True) as redis,
                    installation(kafka, redis, directory / name) as here,
                ):
                    here.start(**_ROW)
                    with TROUBLES[name](Place(here, kafka, redis)):
                        found[name] = here.read()
                arguments.file.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
