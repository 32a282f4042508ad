"""redis-benchmark calls the API's script: it shows how many requests this Redis could serve if the API cost nothing."""

import csv
import io
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import partial

from api.redis import scripts
from bench.benchmark import Lab, MeasurementFailed, client
from bench.crm import Tenant
from bench.filling import live
from bench.machine import pinned
from bench.servers import Stage
from schemas import api_keys, names, resources
from schemas.control import GenerationId

RunCalls = Callable[[float], tuple[float, int]]
"""Calls the script for a number of seconds. Returns calls a second, and the number of calls."""
_PIPELINE = 16
"""Commands in one pipeline: as many as the API sends."""
_EXPECTED_RATE = 50_000


def runner(lab: Lab, stage: Stage) -> RunCalls | None:
    """Returns None if redis-benchmark is not installed; then the lab notes that it was left out."""
    program = shutil.which("redis-benchmark")
    if program is None:
        lab.left_out["redis-benchmark"] = "not installed (Debian: redis-tools)"
        return None
    return partial(_run, program, stage)


def _run(program: str, stage: Stage, seconds: float) -> tuple[float, int]:
    count = max(1000, int(seconds * _EXPECTED_RATE))
    command = [program, "-p", str(stage.redis.port), "-c", "1", "-P", str(_PIPELINE), "-n", str(count), "--csv"]
    tenant = stage.tenants[0]
    # The last word contains zeros, so that it cannot be an argument: with -x, the program reads it from its input.
    with client(stage.redis) as connection:
        *words, limits = serve(tenant, tenant.leads[0], live(connection))
    # It runs on the worker's core, so that Redis has a core to itself.
    with pinned(stage.cores.worker):
        ended = subprocess.run([*command, "-x", *words], input=limits, capture_output=True, check=False)
    rows = list(csv.DictReader(io.StringIO(ended.stdout.decode())))
    if ended.returncode or not rows:
        raise MeasurementFailed(f"redis-benchmark: {(ended.stderr or ended.stdout).decode()}")
    return float(rows[-1]["rps"]), count


def serve(tenant: Tenant, lead_id: str, generation: GenerationId) -> list[bytes]:
    """Returns the call of the API's script for a request for this lead."""
    owner, hashed = names.organization(tenant.organization_id), api_keys.key_hash(tenant.key)
    command = scripts.serve(
        key=names.api_key(owner, hashed),
        organization=owner,
        key_limit=names.key_limit(owner, hashed),
        organization_limit=names.organization_limit(owner),
        document=names.document(resources.LEAD, owner, generation, lead_id),
        tag=api_keys.organization_tag(tenant.organization_id).encode(),
        limits=struct.pack("<IIII", 100, 10, 300, 10),
        etags=(),
    )
    return command.words()
