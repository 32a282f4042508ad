"""The machine and the versions of software that a result belongs to."""

import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from bench import cores
from devstack.redis_server import redis_program

_PACKAGES = (
    "aiokafka",
    "hiredis",
    "httptools",
    "msgspec",
    "redis",
    "starlette",
    "uvicorn",
    "uvloop",
)
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_GIBIBYTE = 1 << 30


def description() -> dict[str, str]:
    """Processor, cores, memory and system; neither the machine's name nor the user's."""
    return {
        "processor": _processor(),
        "cores": str(len(cores.available())),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages and programs that are measured, or that measure, if they are installed."""
    by_name = {name: metadata.version(name) for name in _PACKAGES}
    by_name["redis-server"] = _program(str(redis_program()), "--version")
    for name, argument in (("redis-benchmark", "--version"), ("nginx", "-v"), ("wrk", "--version")):
        if program := shutil.which(name):
            by_name[name] = _program(program, argument)
    return by_name


def _program(program: str, argument: str) -> str:
    ended = subprocess.run([program, argument], capture_output=True, text=True, check=False)
    match = _VERSION.search(ended.stdout + ended.stderr)
    return match[0] if match else "unknown"


def _processor() -> str:
    return _first(Path("/proc/cpuinfo"), r"model name\s*: (.*)") or platform.processor()


def _memory() -> str:
    kilobytes = _first(Path("/proc/meminfo"), r"MemTotal:\s*(\d+)")
    return f"{int(kilobytes) * 1024 / _GIBIBYTE:.0f} GiB" if kilobytes else "unknown"


def _first(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text()) if path.is_file() else None
    return match[1] if match else ""
