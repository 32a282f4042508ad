"""`python -m tests.chaos`: a run of any length, on its own Kafka and Redis."""

import argparse
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from devstack.apache_kafka import ApacheKafka, Login
from devstack.embedded_kafka import EmbeddedKafka
from devstack.fault_proxy import faulty_proxy
from tests.chaos.nemesis import FAULTS, Fault
from tests.chaos.run import run
from tests.chaos.world import FAKETIME, World
from tests.harness.services import Kafka


def main() -> int:
    """Returns 0 if all was right, 1 if anything was wrong, and 2 if that cannot be said. Then the logs stay in the
    directory that is printed. The last line that is printed is the verdict.
    """
    chosen = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was seen until then is checked
    faults = _possible(chosen)
    if not faults:
        sys.exit("none of these faults is possible here")
    directory = Path(mkdtemp(prefix="leadview-chaos-"))
    print(f"seed {chosen.seed}, logs in {directory}, faults: {', '.join(fault.name for fault in faults)}", flush=True)
    try:
        status = _run(chosen, faults, directory)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the last line is a verdict
        traceback.print_exc()
        print(f"not finished: {type(error).__name__}: {error}")
        return 2
    if status == 0:
        shutil.rmtree(directory)
    return status


def _possible(chosen: argparse.Namespace) -> list[Fault]:
    """Returns the faults that are wanted, without those that are not possible here. Says so if a program is missing."""
    possible = {"", chosen.redis}
    if chosen.kafka == "apache":
        possible |= {"groups", "ways", "brokers"} if chosen.kafka_nodes > 1 else {"groups", "ways"}
    if chosen.redis == "address":
        if shutil.which(FAKETIME):
            possible.add("clock")
        else:
            print(f"clocks stay right: {FAKETIME} is not installed (on Debian it is in the package {FAKETIME})")
    wanted = chosen.faults.split(",") if chosen.faults else FAULTS
    return [fault for fault in FAULTS.values() if fault.needs in possible and fault.name in wanted]


def _run(chosen: argparse.Namespace, faults: Sequence[Fault], directory: Path) -> int:
    with ExitStack() as stack:
        brokers, needs = None, {fault.needs for fault in faults}
        ways = [stack.enter_context(faulty_proxy(0)) for _ in range(chosen.kafka_nodes if "ways" in needs else 0)]
        if chosen.kafka == "embedded":
            embedded = stack.enter_context(EmbeddedKafka.start(directory / "kafka"))
            kafka = Kafka("embedded", embedded.bootstrap_servers, embedded.create_topic)
        else:
            login = Login("PLAINTEXT", {}, named_ports=[way.port for way in ways]) if ways else None
            apache = stack.enter_context(ApacheKafka.start(directory / "kafka", chosen.kafka_nodes, login=login))
            for way, address in zip(ways, apache.sasl_servers.split(","), strict=False):
                way.server_port = int(address.rpartition(":")[2])
            kafka = Kafka("apache", apache.bootstrap_servers, apache.create_topic)
            brokers = apache if chosen.kafka_nodes > 1 else None
        world = stack.enter_context(
            World(
                kafka,
                "crm.",
                directory,
                brokers,
                redis=chosen.redis,
                processes=chosen.processes,
                ways=ways,
                clock="clock" in needs,
            )
        )
        report = run(world, chosen.seed, chosen.seconds, faults, pairs=chosen.pairs, hostile_bytes=chosen.hostile)
    print(report)
    return report.status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="the same one makes the same changes")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--faults", help=f"some of these, with commas between: {', '.join(FAULTS)}")
    parser.add_argument("--kafka-nodes", type=int, default=1, choices=[1, 3], help="3: brokers are killed, too")
    parser.add_argument(
        "--kafka", default="apache", choices=["apache", "embedded"], help="embedded: what it cannot do is left out"
    )
    parser.add_argument(
        "--redis", default="address", choices=["address", "sentinel", "cluster"], help="how Redis is found"
    )
    parser.add_argument("--processes", type=int, default=3, help="API processes; each reader asks all of them")
    parser.add_argument("--hostile", type=int, default=75_000, help="bytes of the largest hostile record; 0: none")
    parser.add_argument("--pairs", type=float, default=0.3, help="share of faults with another one inside of them")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
