"""`python -m tests.simulation`: worlds, one after the other, until one is wrong or the time is over."""

import argparse
import ctypes
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

from msgspec.structs import replace

from tests.simulation.bridge import Server, started
from tests.simulation.defects import DEFECTS, found
from tests.simulation.faults import FAULTS
from tests.simulation.reached import NAMES
from tests.simulation.run import STEPS, Outcome, Scenario, scenario_of, simulate

_SAME = "LEADVIEW_TEST_SAME_EACH_TIME"
_FIXED_ADDRESSES = 0x0040000
"""ADDR_NO_RANDOMIZE of Linux."""
_HOUR = 3600.0


def main() -> int:
    """Returns 0 if all was right, and 1 if anything was wrong. The last line is the verdict."""
    if _SAME not in os.environ:
        # The order in sets has to be the same each time: it follows from the hashes of texts, and from the addresses of
        # other objects. Where the system does not let a program choose them, a comparison may ask in another order.
        if sys.platform == "linux":
            ctypes.CDLL(None).personality(_FIXED_ADDRESSES)
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {_SAME: "", "PYTHONHASHSEED": "0"})  # noqa: S606 - the same one
    chosen = _arguments()
    server = started()
    try:
        return _planted(chosen, server) if chosen.planted else _run(chosen, server)
    finally:
        server.close()


def _run(chosen: argparse.Namespace, server: Server) -> int:
    began, seconds, answers, reached = time.monotonic(), 0.0, Counter[int](), Counter[str]()
    number = published = commands = 0
    for number, scenario in enumerate(_scenarios(chosen), 1):
        outcome = simulate(server, scenario)
        seconds, published, commands = (
            seconds + outcome.seconds,
            published + outcome.published,
            commands + outcome.commands,
        )
        answers += outcome.verdict.checked
        reached += outcome.reached
        if chosen.digest:
            print(outcome.digest)
        if chosen.log:
            print("\n".join(outcome.log))
        if not outcome.is_right:
            print(*outcome.complaints(), sep="\n")
            least = scenario if chosen.only else shrunk(server, outcome)
            print(f'wrong: make simulate ARGS="--seed {scenario.seed} --only {_text(least, chosen)}"')
            return 1
        if number == chosen.worlds or (chosen.worlds is None and seconds >= chosen.hours * _HOUR):
            break
    checked = ", ".join(f"{times} x {status or 'no answer'}" for status, times in sorted(answers.items()))
    print(f"{published} changes published, {commands} commands of Redis; answers checked: {checked}")
    print(*(f"  {name} x {times}" for name, times in sorted(reached.items())), sep="\n")
    if missing := NAMES - reached.keys() if seconds >= _HOUR and not chosen.faults else ():
        print(f"wrong: never reached: {', '.join(sorted(missing))}")
        return 1
    took = time.monotonic() - began
    print(
        f"all is right: {number} worlds, {seconds / _HOUR:.2f} hours in {took / _HOUR:.2f}, from seed {chosen.seed} on"
    )
    return 0


def _planted(chosen: argparse.Namespace, server: Server) -> int:
    numbers = range(len(DEFECTS)) if chosen.planted == "all" else map(int, chosen.planted.split(","))
    missed = 0
    for number in numbers:
        outcome = found(server, DEFECTS[number], *([1] if chosen.kept else []))
        missed += outcome is None
        how = f"seed {outcome.scenario.seed}: {outcome.complaints()[0][:120]}" if outcome else "not found"
        print(f"{number} {DEFECTS[number].name}: {how}", flush=True)
    print(f"{missed} are not found")
    return int(missed > 0)


def _scenarios(chosen: argparse.Namespace) -> Iterator[Scenario]:
    faults = chosen.faults.split(",") if chosen.faults else [*FAULTS]
    if not chosen.only:
        yield from (scenario_of(seed, faults, chosen.steps) for seed in count(chosen.seed))
        return
    scenario = scenario_of(chosen.seed, faults, chosen.steps)
    kept = []
    for place in chosen.only.split(","):
        index, _, one = place.partition(".")
        step = scenario.steps[int(index)] if index else None
        if step:
            kept.append(replace(step, faults=(step.faults[int(one)],)) if one else step)
    yield replace(scenario, steps=tuple(kept))


def shrunk(server: Server, outcome: Outcome) -> Scenario:
    """Returns the scenario with fewer faults, as long as anything is wrong in its world."""
    scenario = outcome.scenario
    index = len(scenario.steps)
    while index:
        index -= 1
        step, others = scenario.steps[index], scenario.steps[:index]
        rest = scenario.steps[index + 1 :]
        fewer = [(*others, *rest)]
        if len(step.faults) > 1:
            fewer += [(*others, replace(step, faults=(fault,)), *rest) for fault in step.faults]
        for steps in fewer:
            smaller = replace(scenario, steps=steps)
            if not simulate(server, smaller).is_right:
                scenario = smaller
                break
    return scenario


def _text(scenario: Scenario, chosen: argparse.Namespace) -> str:
    """Returns what `--only` takes: the places of the steps, and of a fault in each that has only one left."""
    faults = chosen.faults.split(",") if chosen.faults else [*FAULTS]
    places = {
        step.seed: (index, step) for index, step in enumerate(scenario_of(scenario.seed, faults, chosen.steps).steps)
    }
    words = []
    for step in scenario.steps:
        index, whole = places[step.seed]
        words.append(str(index) if step.faults == whole.faults else f"{index}.{whole.faults.index(step.faults[0])}")
    more = f" --faults {chosen.faults}" if chosen.faults else ""
    more += f" --steps {chosen.steps}" if chosen.steps != STEPS else ""
    return ",".join(words or ["."]) + more


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the first world")
    parser.add_argument("--hours", type=float, default=0.1, help="of the worlds, until which more of them begin")
    parser.add_argument("--worlds", type=int, help="this number of worlds, however long they are")
    parser.add_argument("--faults", help=f"some of these, with commas between: {', '.join(FAULTS)}")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the nemesis, in each world")
    parser.add_argument("--only", help="these steps alone, as the line that repeats a failure says")
    parser.add_argument("--planted", help="plant these defects, by number, or all, and look for worlds that find them")
    parser.add_argument("--kept", action="store_true", help="with --planted: try the kept seeds alone")
    parser.add_argument("--digest", action="store_true", help="print for each world what stands for all commands")
    parser.add_argument("--log", action="store_true", help="print what the programs have logged")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
