"""All benchmarks, in the order in which they run."""

from bench.api import Api
from bench.api_connections import ApiConnections
from bench.api_latency import ApiLatency
from bench.api_memory import ApiMemory
from bench.api_workers import ApiWorkers
from bench.benchmark import Benchmark
from bench.catch_up import CatchUp
from bench.cluster_costs import ClusterCosts
from bench.cold_start import ColdStart
from bench.compression import CompressionCosts
from bench.fairness import Fairness
from bench.fan_out import FanOut
from bench.freshness import Freshness
from bench.growth import GrowthDocuments, GrowthOrganizations
from bench.long_run import LongRun
from bench.memory import Memory, MemoryOrganizations
from bench.projector import Projector
from bench.projector_processes import ProjectorProcesses
from bench.rebuild import Rebuild
from bench.redis_work import RedisWork
from bench.simulation.benchmark import Simulation
from bench.updates import Updates
from bench.worst_batches import WorstBatches

BENCHMARKS: tuple[Benchmark, ...] = (
    Api(),
    ApiConnections(),
    ApiWorkers(),
    ApiLatency(),
    ApiMemory(),
    Fairness(),
    Memory(),
    MemoryOrganizations(),
    CompressionCosts(),
    Projector(),
    Updates(),
    RedisWork(),
    ProjectorProcesses(),
    Freshness(),
    Rebuild(),
    CatchUp(),
    ColdStart(),
    FanOut(),
    WorstBatches(),
    LongRun(),
    GrowthDocuments(),
    GrowthOrganizations(),
    ClusterCosts(),
    Simulation(),
)
