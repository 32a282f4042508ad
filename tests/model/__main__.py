"""`python -m tests.model`: TLC checks every configuration in `docs/model`, and finds an error without each rule. Then
real programs show that they take only the model's steps, and another one without each rule that is theirs.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from devstack.leash import Scratch
from devstack.redis_server import RedisServer
from tests.harness.services import RedisService, start_kafka
from tests.model import access, defects, tlc, traces
from tests.model.recorder import Line, Recorder
from tests.model.tlc import DEADLOCK


class Mutation(NamedTuple):
    """A configuration, the rules that are switched off in it, and what TLC may find violated then.

    Several rules are switched off together if each of them alone still closes the hole.
    """

    configuration: str
    off: tuple[str, ...]
    violated: tuple[str, ...]
    hole: str


MUTATIONS = (
    Mutation("access", ("mark",), ("NeverAgain",), "a recreated organization is open while it is replayed"),
    Mutation("access", ("end",), ("NothingLeft", "NeverAgain"), "a job looks at its organization when it ends"),
    Mutation("access", ("same-organization",), ("NothingLeft",), "an earlier deletion's job ends a later one"),
    Mutation("access", ("same-slots",), ("NothingLeft",), "keys move behind an erasure"),
    Mutation("access", ("job-version",), (DEADLOCK,), "a job that became due again is lost"),
    Mutation("tombstone", ("kept",), ("NeverAgain",), "a revocation that Kafka removes is lost"),
    Mutation("all-emptied", ("leftovers",), ("NothingLeft",), "what was written into an empty Redis remains"),
    Mutation("all-emptied", ("lineage",), ("NothingLeft",), "two records begin with the same lineage"),
    Mutation("all-emptied", ("new-lineage",), ("NothingLeft",), "a batch of an earlier record continues"),
    Mutation("all-emptied", ("own",), ("NothingLeft",), "the beginner's own batch continues"),
    Mutation("stopped-drop", ("identity", "sweep-fence"), ("Covered",), "a stale drop meets a new generation"),
    Mutation("old-backup", ("identity",), ("NothingLeft", "Mapped"), "a number of a restored shard is used again"),
    Mutation("drops", ("fence",), ("NothingLeft",), "a drop does not wait for one of two writers"),
    Mutation("sleeper", ("fence",), ("NothingLeft",), "a drop does not wait for a writer that sleeps"),
    Mutation("sleeper", ("reconnect",), ("NothingLeft",), "a writer that woke up uses a new connection"),
    Mutation("sleeper", ("pointer",), ("NoStepBack",), "a reader that slept asks for a former generation"),
    Mutation("sleeper", ("swept",), ("NothingLeft",), "a generation is forgotten before it is swept"),
    Mutation("emptied", ("version",), ("NoStepBack", "Covered"), "an older version replaces a newer one"),
    Mutation("emptied", ("incarnation",), ("Covered",), "a batch from before a shard was emptied is covered"),
    Mutation("emptied", ("complete",), ("Complete", "NoStepBack"), "a shard is served while it is filled"),
    Mutation("emptied", ("reached",), ("Complete", "NoStepBack"), "a shard is filled before the ends"),
    Mutation("emptied", ("written",), ("OneRecord",), "an emptied shard begins with a default"),
    Mutation("emptied", ("live",), ("OneRecord",), "an emptied shard serves a default"),
    Mutation("emptied", ("ends",), ("Complete", "NoStepBack"), "the ends are those of an earlier copy"),
    Mutation("slow-fill", ("fill-as-read",), ("Complete", "Covered", "NoStepBack"), "a keeper fills another copy"),
    Mutation("failover", ("history",), ("Covered",), "a batch continues after a failover"),
    Mutation("failover", ("bring-back",), ("NothingLeft",), "a failover brings back a dropped generation"),
    Mutation("failover", ("sweep-history",), ("Covered", "NothingLeft"), "a failover undoes a sweep"),
    Mutation("operators", ("compare",), ("NeverUndone",), "two changes of one record"),
    Mutation(
        "operators", ("counts",), ("Covered", "NeverUndone", "NoStepBack"), "a change counts before all copies have it"
    ),
    Mutation("operators", ("exact",), ("NeverUndone",), "a change is rolled over another one"),
    Mutation("operators", ("operator-history",), ("NeverUndone",), "a change continues after a failover"),
    Mutation("rebuild", ("mapping",), ("Mapped",), "an older program writes a newer generation"),
    Mutation("rebuild", ("target",), ("NoStepBack", "Covered"), "the targets of a rebuild are too low"),
    Mutation("rebuild-emptied", ("filling",), ("Complete", "Covered"), "a rebuild fills a shard that was emptied"),
    Mutation(
        "rebuild-failover",
        ("highest", "target"),
        ("Covered", "NoStepBack"),
        "the targets are positions that may go back",
    ),
    Mutation("recovery-failover", ("remake",), ("Recovers",), "a shard never holds the live generation again"),
    Mutation("registry", ("connections",), ("NothingLeft",), "a writer that the registry forgot continues"),
    Mutation("lost", ("slots",), ("NoStepBack",), "a lost server's slots are given to several others"),
    Mutation("lost", ("every-copy", "slots"), ("NoStepBack",), "the API asks one of two copies of a server"),
    Mutation("moved", ("slots",), ("NoStepBack",), "a slot moves from a shard that is being filled"),
    Mutation("moved", ("every-copy",), ("NoStepBack",), "a copy that is incomplete moves to a complete shard"),
    Mutation("added", ("exact-copy",), ("NoStepBack",), "a copy is replaced by a keeper that stood still"),
    Mutation("added", ("placeholder",), ("NoStepBack",), "a new copy claims what was lost before it was made"),
    Mutation("added-failover", ("history",), ("Covered", "NoStepBack"), "a copy is added after a failover"),
    Mutation("breaks", ("recreated",), ("Honest",), "a topic is deleted and created again"),
    Mutation("breaks", ("truncated",), ("Honest",), "a topic loses records that were applied"),
    Mutation("breaks", ("records_missed",), ("Honest",), "Kafka deletes records before they were read"),
    Mutation(
        "breaks-new-partition",
        ("every-partition",),
        ("Honest",),
        "records of a new partition are deleted before any was read",
    ),
    Mutation("breaks-time", ("deletes_missed",), ("Honest",), "Kafka removes a tombstone before it was read"),
    Mutation("breaks-time", ("reached",), ("Honest",), "a tombstone goes between a sample and its end"),
    Mutation("breaks-time", ("begun",), ("Honest",), "a tombstone goes while an emptied Redis is filled"),
    Mutation(
        "breaks-partitions",
        ("partitions_raised",),
        ("Honest",),
        "an older partition keeps a person without a tombstone",
    ),
    Mutation("breaks-partitions", ("old-partition",), ("Honest",), "a comparison believes an older partition"),
    Mutation("breaks", ("other_cluster",), ("Honest",), "another cluster is read"),
    Mutation("breaks-time", ("evicted",), ("Honest",), "Redis evicts a person"),
    Mutation("breaks-time", ("same-document",), ("Honest",), "a comparison deletes what came after it had read"),
    Mutation("breaks-time", ("began",), ("Honest",), "a comparison ends a break that came after it had begun"),
)
"""Every rule of the models stands here, with what TLC finds without it (`test_model.py` compares)."""

_QUICK = 4
"""The defects of the control record that show within seconds come first."""
_FEWEST_STATES = 900
"""If a configuration has fewer, its bounds are so small that nothing happens."""


def main(words: Sequence[str]) -> int:
    """Returns 1 if a configuration has an error or too few states, if a hole or a defect is not found, or if a program
    takes a step that its model has not.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--changes", type=int, default=3, help="events of the organization in the walks (default: 3)")
    parser.add_argument("--runs", type=int, default=2, help="runs of real programs that are traced (default: 2)")
    parser.add_argument(
        "--defects", type=int, default=_QUICK, help="defects of real programs (default: the quick ones)"
    )
    parser.add_argument("--seed", type=int, default=1, help="that of the first run (default: 1)")
    parser.add_argument("--programs-only", action="store_true", help="do not check the models themselves")
    parser.add_argument("--keep", type=Path, help="a directory for the traces, in lines of JSON")
    parser.add_argument("--check", type=Path, nargs="+", help="only check these traces")
    arguments = parser.parse_args(words)
    if arguments.check:
        return int(_check_traces({str(path): traces.read(path) for path in arguments.check}))
    failed = False if arguments.programs_only else _check_models()
    return int(_check_programs(arguments) or failed)


def _check_models() -> bool:
    """Returns whether anything is wrong."""
    failed = False
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        for mutation, found in zip(MUTATIONS, pool.map(_without_rules, MUTATIONS), strict=True):
            what = f"without {', '.join(mutation.off)}: {found.violated}"
            failed |= found.violated not in mutation.violated
            _report(mutation.configuration, found, what)
    for configuration in sorted(tlc.MODELS.glob("*.cfg")):
        found = tlc.check(configuration, workers=workers)
        _report(configuration.stem, found, "no error" if found.violated is None else f"VIOLATED: {found.violated}")
        if found.violated or found.states < _FEWEST_STATES:
            print(found.output)
            failed = True
    return failed


def _check_programs(arguments: argparse.Namespace) -> bool:
    """Returns whether anything is wrong."""
    with ExitStack() as stack:
        directory = stack.enter_context(Scratch()).path
        with RedisServer.start(directory / "redis") as server:
            failed = _walk(RedisService(server.url), arguments.changes)
        kafka = start_kafka(stack, directory / "kafka", directory / "shared-kafka")
        recorder = stack.enter_context(closing(Recorder(directory / "cluster")))
        run = partial(traces.run, kafka, recorder, directory)
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        recorded = {f"trace-{seed}": run(partial(traces.at_random, seed=seed)) for seed in seeds}
        if arguments.keep:
            for name, lines in recorded.items():
                traces.write(arguments.keep / f"{name}.ndjson", lines)
        failed |= _check_traces(recorded)
        planted = defects.OF_CONTROL[: arguments.defects]
        refused = [_run_without(defect, run) for defect in planted]
        for defect, verdict in zip(planted, traces.check(refused), strict=True):
            failed |= verdict.is_accepted
            what = f"NOT FOUND, {verdict}" if verdict.is_accepted else "found"
            print(f"{'control':<20} {what}: without {defect.rule}, {defect.code}", flush=True)
    return failed


def _check_traces(recorded: Mapping[str, list[Line]]) -> bool:
    """Returns whether any of them is refused."""
    verdicts = traces.check([*recorded.values()])
    for name, verdict in zip(recorded, verdicts, strict=True):
        print(f"{'control':<20} {name}: {verdict}", flush=True)
    return not all(verdict.is_accepted for verdict in verdicts)


def _run_without(defect: defects.ControlDefect, run: Callable[..., list[Line]]) -> list[Line]:
    with defect.off():
        return run(defect.scenario, defects.program(defect))


def _walk(redis: RedisService, changes: int) -> bool:
    failed = False
    for configuration in ("access", "tombstone"):
        begun = time.monotonic()
        try:
            taken = asyncio.run(access.check(configuration, redis, changes))
            what = f"{taken.walks:,} walks, {taken.steps:,} steps of the programs"
        except access.Differs as error:
            failed, what = True, f"ANOTHER STEP: {error}"
        print(f"{configuration:<20} {time.monotonic() - begun:>27.1f} s  {what}", flush=True)
    for defect in defects.OF_ACCESS:
        is_missed = False
        with defect.off(), suppress(access.Differs):
            asyncio.run(access.check(defect.configuration, redis))
            failed = is_missed = True
        print(f"{defect.configuration:<20} {'NOT FOUND' if is_missed else 'found'}: without {defect}", flush=True)
    return failed


def _without_rules(mutation: Mutation) -> tlc.Outcome:
    """With several workers, it would depend on their speed which of several violations is found first."""
    return tlc.check(tlc.MODELS / f"{mutation.configuration}.cfg", workers=1, off=mutation.off)


def _report(configuration: str, found: tlc.Outcome, what: str) -> None:
    print(f"{configuration:<20} {found.states:>12,} states {found.seconds:>8.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
