"""`python -m tests.chaos`: a run of any length, on its own Kafka and Redis."""

import argparse
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from devstack.apache_kafka import ApacheKafka
from tests.chaos.faults import FAULTS
from tests.chaos.run import Rates, run
from tests.chaos.world import World
from tests.harness.services import Kafka


def main() -> int:
    """Returns 1 if anything was wrong. Then the logs stay in the directory that is printed."""
    chosen = _arguments()
    faults = [fault for fault in FAULTS.values() if _is_wanted(fault.name, chosen)]
    if not faults:
        sys.exit("none of these faults is possible here")
    directory = Path(mkdtemp(prefix="leadview-chaos-"))
    print(f"seed {chosen.seed}, logs in {directory}, faults: {', '.join(fault.name for fault in faults)}", flush=True)
    with ExitStack() as stack:
        brokers = stack.enter_context(ApacheKafka.start(directory / "kafka", chosen.kafka_nodes))
        kafka = Kafka("apache", brokers.bootstrap_servers, brokers.create_topic)
        harmed = brokers if chosen.kafka_nodes > 1 else None
        world = stack.enter_context(World(kafka, "crm.", directory, harmed, redis=chosen.redis))
        report = run(
            world, chosen.seed, chosen.seconds, faults, rates=Rates(chosen.rate, chosen.readers), pairs=chosen.pairs
        )
    print(report)
    if report.is_right:
        shutil.rmtree(directory)
    return 0 if report.is_right else 1


def _is_wanted(name: str, chosen: argparse.Namespace) -> bool:
    possible = {"", chosen.redis, "brokers" if chosen.kafka_nodes > 1 else ""}
    return FAULTS[name].needs in possible and (not chosen.faults or name in chosen.faults.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="the same one makes the same changes")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--faults", help=f"some of these, with commas between: {', '.join(FAULTS)}")
    parser.add_argument("--kafka-nodes", type=int, default=1, choices=[1, 3], help="3: brokers are killed, too")
    parser.add_argument(
        "--redis", default="address", choices=["address", "sentinel", "cluster"], help="how Redis is found"
    )
    parser.add_argument("--rate", type=float, default=150.0, help="changes a second")
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--pairs", type=float, default=0.3, help="share of faults with another one inside of them")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
