"""deploy/kubernetes compared with the programs, the image and compose.yaml.

`make kubernetes` applies it to a real API server; this needs neither a cluster nor Kustomize.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import certifi
import pytest
import yaml

from api.server import SHUTDOWN_SECONDS
from docs.generate.monitoring import Options
from projector.commands import arguments
from schemas import metrics
from schemas.limits import MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES
from schemas.resources import BY_TOPIC
from schemas.settings import ApiSettings, ProjectorSettings, RedisSettings, load, variable
from schemas.version import VERSION

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())
USER = 10001
SECRETS = "/run/leadview"


def resources(folder: str) -> list[dict[str, Any]]:
    files = sorted((KUBERNETES / folder).glob("*.yaml"))
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return [each for each in found if each.get("kind", "Component") not in ("Kustomization", "Component")]


def resource(folder: str, kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in resources(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


class Program(NamedTuple):
    """A pod of the base, and its only container."""

    name: str
    pod: dict[str, Any]
    container: dict[str, Any]
    environment: dict[str, str]
    settings: type[RedisSettings]


def programs() -> Iterator[Program]:
    literals = {each["name"]: each["literals"] for each in KUSTOMIZATION["configMapGenerator"]}
    for each in resources("base"):
        if each["kind"] not in ("Deployment", "CronJob"):
            continue
        spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        [source] = container["envFrom"]
        config = source["configMapRef"]["name"]
        environment = dict(line.split("=", 1) for line in literals[config])
        settings = ApiSettings if config == "leadview-api" else ProjectorSettings
        yield Program(each["metadata"]["name"], pod, container, environment, settings)


PROGRAMS = {program.name.removeprefix("leadview-"): program for program in programs()}
each_program = pytest.mark.parametrize("name", PROGRAMS)
OF_KAFKA = ("projector", "rebuild", "verify")
each_service = pytest.mark.parametrize("name", ["api", "projector"])


def test_every_program_is_there() -> None:
    assert PROGRAMS.keys() == {"api", "projector", "rebuild", "verify"}


@each_program
def test_pods_may_do_nothing_that_they_do_not_need(name: str) -> None:
    pod, container = PROGRAMS[name].pod, PROGRAMS[name].container
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {USER}:{USER}" in DOCKERFILE


@each_program
def test_kubernetes_adds_no_variables_that_look_like_settings(name: str) -> None:
    """For the Service leadview-api, it would set LEADVIEW_API_PORT=tcp://…, and no program would start."""
    assert PROGRAMS[name].pod["enableServiceLinks"] is False
    service = resource("base", "Service", "leadview-api")["metadata"]["name"].upper().replace("-", "_")
    assert f"{service}_PORT" == variable("api_port")


@each_program
def test_settings_are_known_and_valid(name: str) -> None:
    program = PROGRAMS[name]
    known = {variable(field) for field in program.settings.__struct_fields__}
    secrets = {name for name in known if name.endswith("_PASSWORD")}
    assert program.environment.keys() <= known | {f"{secret}_FILE" for secret in secrets}
    assert not secrets & program.environment.keys(), "secrets come from files"
    given = {}
    for setting, value in program.environment.items():
        if setting.removesuffix("_FILE") in secrets:
            given[setting.removesuffix("_FILE")] = "from the file"
        else:
            given[setting] = certifi.where() if setting.endswith("_CA_FILE") else value
    load(program.settings, given)


@each_program
def test_files_of_settings_are_mounted_and_no_others(name: str) -> None:
    program = PROGRAMS[name]
    named = {value for setting, value in program.environment.items() if setting.endswith("_FILE")}
    [mount] = [each for each in program.container["volumeMounts"] if each["mountPath"] == SECRETS]
    assert "subPath" not in mount, "such a file would keep the secret of the start"
    assert mount["readOnly"] is True
    [volume] = [each["projected"] for each in program.pod["volumes"] if each["name"] == mount["name"]]
    assert volume["defaultMode"] == 0o440
    items = [item for source in volume["sources"] for item in next(iter(source.values()))["items"]]
    assert {f"{SECRETS}/{item['path']}" for item in items} == named


@each_program
def test_only_folders_in_memory_are_written(name: str) -> None:
    program = PROGRAMS[name]
    [mount] = [each for each in program.container["volumeMounts"] if not each.get("readOnly")]
    [volume] = [each for each in program.pod["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert [mount["mountPath"]] == SERVICES["api"]["tmpfs"]


@each_service
def test_commands_and_memory_are_those_of_compose(name: str) -> None:
    container = PROGRAMS[name].container
    assert container["command"] == SERVICES[name]["command"]
    memory = {"1g": "1Gi"}.get(SERVICES[name]["mem_limit"], f"{SERVICES[name]['mem_limit']}i".replace("mi", "Mi"))
    assert container["resources"]["limits"] == {"memory": memory}
    assert container["resources"]["requests"]["memory"] == memory


@each_service
def test_ports_are_those_of_compose_the_image_and_the_settings(name: str) -> None:
    program = PROGRAMS[name]
    ports = {port["containerPort"] for port in program.container["ports"]}
    assert ports == {int(port) for port in SERVICES[name]["expose"]}
    settings = {int(value) for setting, value in program.environment.items() if setting.endswith("_PORT")}
    assert ports == settings
    [exposed] = re.findall(r"^EXPOSE (.*)", DOCKERFILE, re.MULTILINE)
    assert ports <= {int(port) for port in exposed.split()}
    hosts = {value for setting, value in program.environment.items() if setting.endswith("_HOST")}
    assert hosts == {"::"}, "pods of some clusters have addresses of IPv6 alone"


@each_service
def test_settings_that_compose_has_as_well_are_the_same(name: str) -> None:
    other_servers = {"LEADVIEW_REDIS_URL", "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS", "LEADVIEW_API_TRUSTED_PROXIES"}
    ours, theirs = PROGRAMS[name].environment, SERVICES[name]["environment"]
    same = {key for key in theirs.keys() - other_servers if not key.endswith("_HOST")}
    assert {key: ours.get(key) for key in same} == {key: theirs[key] for key in same}


@pytest.mark.parametrize(
    ("name", "probe", "path", "port"),
    [
        pytest.param("api", "startupProbe", "/healthz", "http", id="the API starts"),
        pytest.param("api", "livenessProbe", "/healthz", "http", id="the API lives"),
        pytest.param("api", "readinessProbe", "/readyz", "http", id="the API is ready"),
        pytest.param("projector", "startupProbe", "/livez", "metrics", id="the projector starts"),
        pytest.param("projector", "livenessProbe", "/livez", "metrics", id="the projector lives"),
        pytest.param("projector", "readinessProbe", "/healthz", "metrics", id="the projector does its work"),
        pytest.param("verify", "startupProbe", "/livez", "metrics", id="the verification starts"),
        pytest.param("verify", "livenessProbe", "/livez", "metrics", id="the verification lives"),
        pytest.param("verify", "readinessProbe", "/healthz", "metrics", id="the verification can verify"),
    ],
)
def test_probes_ask_what_docs_metrics_says(name: str, probe: str, path: str, port: str) -> None:
    assert PROGRAMS[name].container[probe]["httpGet"] == {"path": path, "port": port}


def test_the_drain_lasts_until_readiness_has_failed_and_ends_before_the_pod_is_killed() -> None:
    pod, container, environment = PROGRAMS["api"].pod, PROGRAMS["api"].container, PROGRAMS["api"].environment
    drain = float(environment["LEADVIEW_API_DRAIN_SECONDS"])
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < drain
    assert drain + SHUTDOWN_SECONDS < pod["terminationGracePeriodSeconds"]


def test_each_worker_of_the_api_has_a_core() -> None:
    container, environment = PROGRAMS["api"].container, PROGRAMS["api"].environment
    assert container["resources"]["requests"]["cpu"] == environment["LEADVIEW_API_WORKERS"]


@pytest.mark.parametrize("name", OF_KAFKA)
def test_commands_exist(name: str) -> None:
    python, option, module, *words = PROGRAMS[name].container["command"]
    assert (python, option, module) == ("python", "-m", "projector")
    arguments.parse(words)


def test_the_image_has_the_version_of_the_program() -> None:
    assert [(image["name"], image["newTag"]) for image in KUSTOMIZATION["images"]] == [("leadview", VERSION)]
    assert {program.container["image"] for program in PROGRAMS.values()} == {"leadview"}


def test_topics_are_those_of_the_contract_and_fit_the_largest_record() -> None:
    topics = {each["metadata"]["name"]: each["spec"] for each in resources("strimzi") if each["kind"] == "KafkaTopic"}
    assert topics.keys() == {f"crm.{topic}" for topic in BY_TOPIC}
    for topic in topics.values():
        assert topic["config"]["cleanup.policy"] == "compact"
        assert topic["config"]["max.message.bytes"] > MAX_RECORD_BYTES + MAX_HEADER_BYTES + MAX_KEY_BYTES
        assert topic["config"]["min.insync.replicas"] < topic["replicas"]


def test_the_user_of_kafka_reads_the_topics_and_the_groups_and_writes_nothing() -> None:
    user = resource("strimzi", "KafkaUser", "leadview-projector")["spec"]
    environment = PROGRAMS["projector"].environment
    assert environment["LEADVIEW_KAFKA_SASL_USERNAME"] == "leadview-projector"
    assert environment["LEADVIEW_KAFKA_SASL_MECHANISM"].lower() == user["authentication"]["type"]
    rights = {(each["resource"]["type"], each["resource"]["name"]): each for each in user["authorization"]["acls"]}
    group = ProjectorSettings().group_id
    assert rights.keys() == {("topic", f"crm.{topic}") for topic in BY_TOPIC} | {
        ("group", group),
        ("group", f"{group}."),
    }
    operations = {operation for each in rights.values() for operation in each["operations"]}
    assert operations == {"Read", "Describe", "DescribeConfigs"}


def test_projectors_are_scaled_by_their_lag_up_to_the_number_of_partitions() -> None:
    spec = resource("components/keda", "ScaledObject", "leadview-projector")["spec"]
    [trigger] = spec["triggers"]
    assert metrics.LAG.name in trigger["metadata"]["query"]
    topic = resource("strimzi", "KafkaTopic", "crm.leads")["spec"]
    assert spec["maxReplicaCount"] == topic["partitions"]
    base = resource("base", "HorizontalPodAutoscaler", "leadview-projector")["spec"]
    assert (base["minReplicas"], base["maxReplicas"]) == (spec["minReplicaCount"], spec["maxReplicaCount"])
    assert base["behavior"] == spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]


@each_service
def test_the_number_of_pods_belongs_to_an_autoscaler(name: str) -> None:
    """A number in the Deployment would be a default of 1 for a moment when it is removed for KEDA."""
    deployment = resource("base", "Deployment", f"leadview-{name}")
    assert "replicas" not in deployment["spec"]
    scaled = resource("base", "HorizontalPodAutoscaler", f"leadview-{name}")["spec"]
    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"leadview-{name}"}
    assert scaled["minReplicas"] >= 2
    assert "replicas" not in yaml.safe_load((KUBERNETES / "overlays/production/kustomization.yaml").read_text())


@pytest.mark.parametrize("name", ["api", "projector", "verify"])
def test_a_rollout_waits_for_the_first_fill(name: str) -> None:
    """Kubernetes would give up after ten minutes."""
    assert resource("base", "Deployment", f"leadview-{name}")["spec"]["progressDeadlineSeconds"] == 3600


@pytest.mark.parametrize(("name", "account"), [("api", "api"), *((name, "projector") for name in OF_KAFKA)])
def test_programs_have_accounts_of_their_own(name: str, account: str) -> None:
    """Clouds give rights to accounts, such as to sign in to Kafka."""
    assert PROGRAMS[name].pod["serviceAccountName"] == f"leadview-{account}"
    assert resource("base", "ServiceAccount", f"leadview-{account}")["automountServiceAccountToken"] is False


def test_budgets_select_pods_that_exist() -> None:
    budgets = [each["spec"] for each in resources("base") if each["kind"] == "PodDisruptionBudget"]
    names = {each["selector"]["matchLabels"]["app.kubernetes.io/name"] for each in budgets}
    assert names == {"leadview-api", "leadview-projector"}


def test_the_monitor_tells_installations_apart() -> None:
    [endpoint] = resource("components/monitoring", "PodMonitor", "leadview")["spec"]["podMetricsEndpoints"]
    for name in ("api", "projector", "verify"):
        assert {"name": endpoint["port"], "containerPort": 9100} in PROGRAMS[name].container["ports"]
    [relabeling] = endpoint["relabelings"]
    assert relabeling["targetLabel"] in Options().labels
    pairs = [label for each in KUSTOMIZATION["labels"] if each["includeTemplates"] for label in each["pairs"]]
    known = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-z]', '_', label)}" for label in pairs}
    assert set(relabeling["sourceLabels"]) <= known


def test_the_rules_are_those_of_prometheus() -> None:
    rules = resource("components/monitoring", "PrometheusRule", "leadview")["spec"]
    assert rules == yaml.safe_load((ROOT / "deploy/monitoring/rules.yaml").read_text())


def test_network_policies_name_the_ports_of_the_settings() -> None:
    default, kafka, api = (
        resource("base", "NetworkPolicy", f"leadview-{name}")["spec"] for name in ("default", "kafka", "api")
    )
    assert default["policyTypes"] == ["Ingress", "Egress"], "what is not allowed is forbidden"
    _, redis = default["egress"]
    assert f":{redis['ports'][0]['port']}/" in PROGRAMS["api"].environment["LEADVIEW_REDIS_URL"]
    [port] = kafka["egress"][0]["ports"]
    assert PROGRAMS["projector"].environment["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"].endswith(f":{port['port']}")
    [expression] = kafka["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {f"leadview-{name}" for name in OF_KAFKA}
    assert str(api["ingress"][0]["ports"][0]["port"]) == PROGRAMS["api"].environment["LEADVIEW_API_PORT"]
