"""deploy/kubernetes in a real API server, with Kubernetes' controllers and scheduler (`make kubernetes`)."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import yaml

from deploy.release import manifests
from tests.harness.waiting import wait_until
from tests.kubernetes.cluster import (
    BUILD,
    DEPLOY,
    ROOT,
    Cluster,
    Refused,
    Resource,
    built,
    definitions,
    running_cluster,
)

pytestmark = pytest.mark.kubernetes

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
NUMBERS = {"leadview-api": 2, "leadview-projector": 2, "leadview-verify": 1}
"""How many pods there are at first."""
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
MONITORING, KEDA, TOKENS, GATEWAY = "monitoring", "keda", "token-endpoint", "gateway"
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two idle nodes in two zones, and one in a third zone that is nearly full."""
    with running_cluster(tmp_path_factory.mktemp("kubernetes")) as cluster:
        for definition in definitions():
            cluster.define(definition)
        cluster.add_node("idle-a", "a", "64")
        cluster.add_node("idle-b", "b", "64")
        cluster.add_node("full", "c", "50m")
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own for each test. It refuses pods that may do more than Leadview needs."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[:60].strip("-")
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    before = len(cluster.warnings)
    yield name
    assert cluster.warnings[before:] == []
    events = cluster.get(f"/api/v1/namespaces/{name}/events")["items"]
    assert [each["message"] for each in events if each["reason"] == "FailedCreate"] == []


def overlay(name: str, *components: str, **more: object) -> list[Resource]:
    folder = BUILD / "overlays" / name
    folder.mkdir(parents=True, exist_ok=True)
    up = Path("../../../../deploy/kubernetes")
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(up / "base")],
        "components": [str(up / "components" / each) for each in components],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return built(folder)


def replace(kind: str, name: str, path: str, value: object) -> Resource:
    return {
        "target": {"kind": kind, "name": name},
        "patch": yaml.safe_dump([{"op": "replace", "path": path, "value": value}]),
    }


def placed(cluster: Cluster, namespace: str, name: str, number: int, instance: str | None = None) -> list[Resource]:
    """Returns the pods of a program when there are this many, and each has a node."""

    def all_have_a_node() -> bool:
        pods = cluster.pods(namespace, name, instance)
        return len(pods) == number and all("nodeName" in pod["spec"] for pod in pods)

    wait_until(all_have_a_node, f"{number} pods of {name} have nodes", PATIENCE_SECONDS)
    return cluster.pods(namespace, name, instance)


def by_kind(resources: list[Resource], kind: str, name: str = "") -> list[Resource]:
    """Returns those of a kind, or the one of them with this name."""
    found = [each for each in resources if each["kind"] == kind]
    return [each for each in found if each["metadata"]["name"] == name] if name else found


def test_the_base_needs_no_definitions_of_others(cluster: Cluster) -> None:
    added = cluster.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    groups = {each["spec"]["group"] for each in added}
    assert groups == {"gateway.networking.k8s.io", "keda.sh", "kafka.strimzi.io", "monitoring.coreos.com"}
    assert not {each["apiVersion"].partition("/")[0] for each in built(DEPLOY / "base")} & groups


def test_the_file_of_a_release_is_accepted(cluster: Cluster, namespace: str) -> None:
    applied = cluster.apply(yaml.safe_load_all(manifests(ROOT)), namespace)
    assert by_kind(applied, "Deployment")


def test_overlay_needs_no_checkout(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The overlay of the page, with this repository in place of yours."""
    page = (ROOT / "docs/production.md").read_text("utf-8")
    [example] = re.findall(r"^```yaml\n(apiVersion: kustomize.+?)^```", page, re.MULTILINE | re.DOTALL)
    here = example.replace("<repository>", f"file://{ROOT}").replace("v…", "HEAD")
    (tmp_path / "kustomization.yaml").write_text(here.replace("namespace: leadview", f"namespace: {namespace}"))
    kinds = {each["kind"] for each in cluster.apply(built(tmp_path))}
    assert kinds >= {"Deployment", "PodMonitor", "PrometheusRule"}


def test_the_example_is_accepted_and_its_pods_are_placed(cluster: Cluster) -> None:
    """With KEDA, the operator of Prometheus, and Strimzi. Its namespace is `restricted` by itself."""
    before = len(cluster.warnings)
    applied = cluster.apply(built(DEPLOY / "overlays/production"))
    [space] = by_kind(applied, "Namespace")
    assert space["metadata"]["labels"].items() >= RESTRICTED.items()
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kafka"}})
    assert cluster.apply(built(DEPLOY / "strimzi"))
    assert cluster.warnings[before:] == []
    for name, number in {"leadview-api": 3, "leadview-projector": 1, "leadview-verify": 1}.items():
        placed(cluster, "leadview", name, number)  # KEDA, which does not run here, would start more projectors
    [scaled] = by_kind(applied, "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert re.findall(r'(\w+)="([^"]*)"', query) == [("namespace", "leadview"), ("installation", "leadview")]


def test_rebuild_is_a_job_of_its_template(cluster: Cluster, namespace: str) -> None:
    """As `kubectl create job --from=cronjob/leadview-rebuild` makes it."""
    [template] = by_kind(cluster.apply(built(DEPLOY / "base"), namespace), "CronJob")
    job = template["spec"]["jobTemplate"]
    job["metadata"]["name"] = "rebuild-2"
    cluster.create({"apiVersion": "batch/v1", "kind": "Job", **job}, namespace)
    placed(cluster, namespace, "leadview-rebuild", 1)


def test_no_pod_waits_for_a_host_of_its_own(cluster: Cluster, namespace: str) -> None:
    """One of three nodes has no room. Four projectors run on the other two, and are distributed over them."""
    patch = replace("HorizontalPodAutoscaler", "leadview-projector", "/spec/minReplicas", 4)
    cluster.apply(overlay("four", patches=[patch]), namespace)
    nodes = Counter(pod["spec"]["nodeName"] for pod in placed(cluster, namespace, "leadview-projector", 4))
    assert nodes.keys() == {"idle-a", "idle-b"}
    nodes = Counter(pod["spec"]["nodeName"] for pod in placed(cluster, namespace, "leadview-api", 2))
    assert nodes == {"idle-a": 1, "idle-b": 1}


@pytest.mark.parametrize("name", ["leadview-api", "leadview-projector"])
def test_drain_takes_one_pod_after_the_other(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.apply(built(DEPLOY / "base"), namespace)
    pods = placed(cluster, namespace, name, 2)
    cluster.start(pods)
    budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"

    def permitted(number: int) -> Callable[[], bool]:
        return lambda: bool(cluster.get(budget)["status"].get("disruptionsAllowed") == number)

    wait_until(permitted(1), "one may be evicted", PATIENCE_SECONDS)
    cluster.evict(pods[0])
    with pytest.raises(Refused, match="disruption budget"):
        cluster.evict(pods[1])
    cluster.end(pods[0])
    replaced = placed(cluster, namespace, name, 2)
    wait_until(permitted(0), "the new pod is not ready yet", PATIENCE_SECONDS)
    with pytest.raises(Refused, match="disruption budget"):
        cluster.evict(pods[1])
    cluster.start(replaced)
    wait_until(permitted(1), "the next one may be evicted", PATIENCE_SECONDS)
    cluster.evict(pods[1])


def test_pods_that_are_not_ready_do_not_keep_a_node_from_being_drained(cluster: Cluster, namespace: str) -> None:
    """As when Redis is away: no pod is ready, and the budget permits no disruption."""
    cluster.apply(built(DEPLOY / "base"), namespace)
    for name in ("leadview-api", "leadview-projector"):
        pods = placed(cluster, namespace, name, 2)
        cluster.start(pods, ready=False)
        for pod in pods:
            cluster.evict(pod)


def test_requests_come_through_a_gateway_and_those_without_tls_are_redirected(cluster: Cluster, namespace: str) -> None:
    built = overlay("gateway", GATEWAY, nameSuffix="-second")
    routes = by_kind(cluster.apply(built, namespace), "HTTPRoute")
    by_listener = {route["spec"]["parentRefs"][0]["sectionName"]: route["spec"]["rules"] for route in routes}
    [served], [redirected] = by_listener["https"], by_listener["http"]
    [service] = by_kind(built, "Service")
    [backend] = served["backendRefs"]
    assert backend["name"] == service["metadata"]["name"] == "leadview-api-second"
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert redirected["filters"][0]["requestRedirect"] == {"scheme": "https", "statusCode": 301}
    assert "backendRefs" not in redirected


def test_two_installations_share_a_namespace_and_every_pod_has_metrics(cluster: Cluster, namespace: str) -> None:
    pairs = {INSTANCE: "second"}
    labels = [{"pairs": pairs, "includeSelectors": True, "includeTemplates": True}]
    first = overlay("first", MONITORING)
    second = overlay("second", MONITORING, KEDA, nameSuffix="-second", labels=labels)
    names = [(each["kind"], each["metadata"]["name"]) for each in first + second]
    assert len(set(names)) == len(names)
    cluster.apply(first, namespace)
    cluster.apply(second, namespace)
    numbers = {"leadview": NUMBERS, "second": NUMBERS | {"leadview-projector": 1}}  # KEDA does not run here
    for instance, of_programs in numbers.items():
        for name, number in of_programs.items():
            placed(cluster, namespace, name, number, instance)

    [endpoint] = by_kind(first, "PodMonitor")[0]["spec"]["podMetricsEndpoints"]
    ports = [port["name"] for pod in cluster.pods(namespace) for port in pod["spec"]["containers"][0]["ports"]]
    assert ports.count(endpoint["port"]) == sum(sum(of_programs.values()) for of_programs in numbers.values())
    pods = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in cluster.pods(namespace)}
    for instance, resources in (("leadview", first), ("second", second)):
        for kind, selector in selectors(resources):
            found = {labels[INSTANCE] for labels in pods.values() if selector.items() <= labels.items()}
            assert found == {instance}, f"{kind} {selector}"
    for name, number in (("leadview-projector", 2), ("leadview-projector-second", 1)):
        budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
        wait_until(lambda: cluster.get(budget)["status"].get("expectedPods") == number, f"{name} counts its own")  # noqa: B023
    [scaled] = by_kind(second, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == "leadview-projector-second"


def selectors(resources: list[Resource]) -> Iterator[tuple[str, dict[str, str]]]:
    for resource in resources:
        kind, spec = resource["kind"], resource.get("spec", {})
        match kind:
            case "Service":
                yield kind, spec["selector"]
            case "Deployment" | "PodDisruptionBudget" | "PodMonitor":
                yield kind, spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                yield kind, spec["podSelector"]["matchLabels"]
        for constraint in spec.get("template", {}).get("spec", {}).get("topologySpreadConstraints", ()):
            yield "topologySpreadConstraint", constraint["labelSelector"]["matchLabels"]


def test_adding_keda_to_four_projectors_keeps_four(cluster: Cluster, namespace: str) -> None:
    autoscaler = replace("HorizontalPodAutoscaler", "leadview-projector", "/spec/minReplicas", 4)
    cluster.apply(overlay("before-keda", patches=[autoscaler]), namespace)
    pods = placed(cluster, namespace, "leadview-projector", 4)
    scaled = replace("ScaledObject", "leadview-projector", "/spec/minReplicaCount", 4)
    applied = cluster.apply(overlay("with-keda", KEDA, patches=[scaled]), namespace)

    [deployment] = by_kind(applied, "Deployment", "leadview-projector")
    assert deployment["spec"]["replicas"] == 4
    assert placed(cluster, namespace, "leadview-projector", 4) == pods
    # KEDA takes over the autoscaler of the base if it finds both of these. It refuses a second one.
    [scaled] = by_kind(applied, "ScaledObject")
    assert scaled["metadata"]["annotations"] == {"scaledobject.keda.sh/transfer-hpa-ownership": "true"}
    name = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["name"]
    left = cluster.get(f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/{name}")
    assert left["spec"]["scaleTargetRef"]["name"] == scaled["spec"]["scaleTargetRef"]["name"] == "leadview-projector"


def test_applying_again_changes_no_number(cluster: Cluster, namespace: str) -> None:
    """The autoscaler has started more, and nobody else names a number."""
    resources = built(DEPLOY / "base")
    cluster.apply(resources, namespace)
    placed(cluster, namespace, "leadview-api", 2)
    autoscaler = replace("HorizontalPodAutoscaler", "leadview-api", "/spec/minReplicas", 5)
    cluster.apply(overlay("five", patches=[autoscaler]), namespace)
    placed(cluster, namespace, "leadview-api", 5)
    [deployment] = by_kind(cluster.apply(resources, namespace), "Deployment", "leadview-api")
    assert deployment["spec"]["replicas"] == 5


# What NetworkPolicies let through, as their specification says. No network plugin runs that would enforce them.

Labels = Mapping[str, str]


class Peer(NamedTuple):
    """The other end of a connection: a pod, or an address outside of the cluster and of its pods."""

    namespace: str = ""
    labels: Labels = {}  # noqa: RUF012 - it is immutable by its type
    address: str = ""


def lets_through(
    policies: Iterable[Resource], pod: Labels, way: Literal["Ingress", "Egress"], peer: Peer, port: int, protocol: str
) -> bool:
    """Returns whether a pod in the namespace of the policies may talk to `peer` (Egress), or be called by it (Ingress).
    The port is that of the side that is called.
    """
    specs = [each["spec"] for each in policies if way in each["spec"]["policyTypes"]]
    concerned = [spec for spec in specs if _selects(spec["podSelector"], pod)]
    peers = "from" if way == "Ingress" else "to"
    rules = [rule for spec in concerned for rule in spec.get(way.lower(), ())]
    return not concerned or any(
        _has_port(rule.get("ports"), port, protocol) and any(_is(each, peer) for each in rule.get(peers) or [{}])
        for rule in rules
    )


def _has_port(ports: list[Resource] | None, port: int, protocol: str) -> bool:
    return not ports or any(each["port"] == port and each.get("protocol", "TCP") == protocol for each in ports)


def _is(named: Resource, peer: Peer) -> bool:
    if "ipBlock" in named:
        return bool(peer.address) and ip_address(peer.address) in ip_network(named["ipBlock"]["cidr"])
    if not named:
        return True
    namespace = {"kubernetes.io/metadata.name": peer.namespace}
    return _selects(named["namespaceSelector"], namespace) and _selects(named.get("podSelector", {}), peer.labels)


def _selects(selector: Resource, labels: Labels) -> bool:
    equal = selector.get("matchLabels", {}).items() <= labels.items()
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions), "nothing else is understood here"
    return equal and all(labels.get(each["key"]) in each["values"] for each in expressions)


DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
NODE_LOCAL_DNS = Peer(address="169.254.20.10")
OPENSHIFT_DNS = Peer("openshift-dns", {"dns.operator.openshift.io/daemonset-dns": "default"})
REDIS, KAFKA = Peer("redis"), Peer("kafka", {"strimzi.io/cluster": "events"})
PROMETHEUS, CONTROLLER, STRANGER = Peer("monitoring"), Peer("ingress"), Peer("another")
TOKEN_ENDPOINT = Peer(address="203.0.113.7")
SOLVER = "solver"


@pytest.mark.parametrize(
    ("pod", "way", "peer", "port", "protocol", "expected"),
    [
        *(
            pytest.param(pod, "Egress", peer, port, protocol, True, id=f"{pod}, {name} over {protocol}")
            for pod in NUMBERS
            for name, peer, port in (
                ("DNS", DNS, 53),
                ("NodeLocal DNS", NODE_LOCAL_DNS, 53),
                ("DNS of OpenShift", OPENSHIFT_DNS, 5353),
            )
            for protocol in ("UDP", "TCP")
        ),
        *(pytest.param(pod, "Egress", REDIS, 6379, "TCP", True, id=f"{pod}, Redis") for pod in NUMBERS),
        *(pytest.param(pod, "Ingress", PROMETHEUS, 9100, "TCP", True, id=f"{pod}, Prometheus") for pod in NUMBERS),
        *(pytest.param(pod, "Ingress", STRANGER, 9100, "TCP", False, id=f"{pod}, a stranger") for pod in NUMBERS),
        pytest.param("leadview-projector", "Egress", KAFKA, 9093, "TCP", True, id="the projector, Kafka"),
        pytest.param("leadview-verify", "Egress", KAFKA, 9093, "TCP", True, id="the verification, Kafka"),
        pytest.param("leadview-api", "Egress", KAFKA, 9093, "TCP", False, id="the API, Kafka"),
        pytest.param("leadview-projector", "Egress", TOKEN_ENDPOINT, 443, "TCP", True, id="a token endpoint"),
        pytest.param("leadview-verify", "Egress", TOKEN_ENDPOINT, 443, "TCP", True, id="a token endpoint, verify"),
        pytest.param("leadview-api", "Egress", TOKEN_ENDPOINT, 443, "TCP", False, id="the API needs no tokens"),
        pytest.param("leadview-api", "Ingress", CONTROLLER, 8000, "TCP", True, id="requests"),
        pytest.param("leadview-api", "Ingress", STRANGER, 8000, "TCP", False, id="requests of a stranger"),
        pytest.param("leadview-projector", "Ingress", CONTROLLER, 8000, "TCP", False, id="no API"),
        pytest.param("leadview-projector", "Egress", STRANGER, 8080, "TCP", False, id="anything else"),
        pytest.param(SOLVER, "Ingress", CONTROLLER, 8089, "TCP", True, id="cert-manager's solver is called"),
        pytest.param(SOLVER, "Egress", STRANGER, 443, "TCP", True, id="cert-manager's solver is free"),
    ],
)
def test_network_policies_let_through_only_what_is_needed(
    policed: tuple[Any, dict[str, dict[str, str]]],
    pod: str,
    way: Literal["Ingress", "Egress"],
    peer: Peer,
    port: int,
    protocol: str,
    expected: bool,
) -> None:
    policies, labels = policed
    assert lets_through(policies, labels[pod], way, peer, port, protocol) == expected


@pytest.fixture(scope="module")
def policed(cluster: Cluster) -> tuple[Any, dict[str, dict[str, str]]]:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "policed"}})
    cluster.apply(overlay("policed", TOKENS), "policed")
    pods = {name: placed(cluster, "policed", name, number)[0] for name, number in NUMBERS.items()}
    labels = {name: pod["metadata"]["labels"] for name, pod in pods.items()}
    policies = cluster.get("/apis/networking.k8s.io/v1/namespaces/policed/networkpolicies")["items"]
    return policies, labels | {SOLVER: {"acme.cert-manager.io/http01-solver": "true"}}
