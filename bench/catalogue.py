"""All benchmarks, in the order in which they run."""

from bench.api import Api
from bench.api_connections import ApiConnections
from bench.api_latency import ApiLatency
from bench.api_memory import ApiMemory
from bench.api_workers import ApiWorkers
from bench.benchmark import Benchmark
from bench.growth import GrowthDocuments, GrowthOrganizations
from bench.memory import Memory
from bench.projector import Projector

BENCHMARKS: tuple[Benchmark, ...] = (
    Api(),
    ApiConnections(),
    ApiWorkers(),
    ApiLatency(),
    ApiMemory(),
    Memory(),
    Projector(),
    GrowthDocuments(),
    GrowthOrganizations(),
)
