"""compose.yaml, the Dockerfile, deploy/kubernetes and deploy/systemd: what has to fit together, and no server checks.
And the checks of `make release`, on a repository that can be released, and with one thing wrong at a time.

`make test-images` runs compose.yaml, and `make kubernetes` applies the manifests to a real API server.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import certifi
import orjson
import pytest
import yaml

from api.server import SHUTDOWN_SECONDS
from deploy.release import constraints, context_of, main, problems, version_of
from docs.generate.monitoring import Options
from docs.generate.versions import VERSIONS
from operate.commands import arguments
from schemas import metrics
from schemas.limits import MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES
from schemas.settings import ApiSettings, ProjectorSettings, RedisSettings, load, networks, variable
from tests.harness.programs import installed

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KUBERNETES = ROOT / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())
SYSTEMD = ROOT / "deploy/systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
SECRETS = "/run/leadview"


def resource(folder: str, kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in resources(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def resources(folder: str) -> list[dict[str, Any]]:
    files = sorted((KUBERNETES / folder).glob("*.yaml"))
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return [each for each in found if each.get("kind", "Component") not in ("Kustomization", "Component")]


class Program(NamedTuple):
    """A pod of the base, and its only container."""

    pod: dict[str, Any]
    container: dict[str, Any]
    environment: dict[str, str]
    settings: type[RedisSettings]


def programs() -> Iterator[tuple[str, Program]]:
    """Yields each program by its name."""
    literals = {each["name"]: each["literals"] for each in KUSTOMIZATION["configMapGenerator"]}
    for each in resources("base"):
        if each["kind"] not in ("Deployment", "CronJob"):
            continue
        spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        config = container["envFrom"][0]["configMapRef"]["name"]
        environment = dict(line.split("=", 1) for line in literals[config])
        settings = ApiSettings if config == "leadview-api" else ProjectorSettings
        yield each["metadata"]["name"].removeprefix("leadview-"), Program(pod, container, environment, settings)


PROGRAMS = dict(programs())
API, PROJECTOR = PROGRAMS["api"], PROGRAMS["projector"]


def settings_everywhere() -> Iterator[Any]:
    """Yields each set of environment variables, with the process that it is for."""
    for name, process in (("projector", ProjectorSettings), ("api", ApiSettings), ("sample", ProjectorSettings)):
        # None: as where Compose runs.
        given = {key: value for key, value in SERVICES[name]["environment"].items() if value is not None}
        yield pytest.param(process, given, id=f"{name} in compose.yaml")
    for name, program in PROGRAMS.items():
        yield pytest.param(program.settings, program.environment, id=f"{name} in Kubernetes")
    for name, process in (("api", ApiSettings), ("projector", ProjectorSettings)):
        lines = (SYSTEMD / f"{name}.env.example").read_text().splitlines()
        active = [line for line in lines if line.startswith("LEADVIEW_")]
        yield pytest.param(process, dict(line.split("=", 1) for line in active), id=f"{name} of systemd")
        active += [line[1:] for line in lines if line.startswith("#LEADVIEW_")]
        yield pytest.param(process, dict(line.split("=", 1) for line in active), id=f"{name} of systemd, all lines")


@pytest.mark.parametrize(("process", "environment"), list(settings_everywhere()))
def test_settings_are_known_and_valid(
    process: type[RedisSettings], environment: Mapping[str, Any], tmp_path: Path
) -> None:
    """Secrets and certificates are in files, which are somewhere else here."""
    assert all(isinstance(value, str) for value in environment.values()), "numbers and booleans change on the way"
    known = {variable(field) for field in process.__struct_fields__}
    passwords = {name for name in known if name.endswith("_PASSWORD")}
    assert environment.keys() <= known | {f"{name}_FILE" for name in passwords}, "and passwords come from files"
    (secret := tmp_path / "secret").write_text("secret")
    files = {name: str(certifi.where() if "_CA_" in name else secret) for name in environment if name.endswith("_FILE")}
    load(process, {**environment, **files})


def test_services_of_compose_are_pinned_and_start_again() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":\d+\.\d+\.\d+(-alpine)?$", service["image"])
        assert service["restart"] == ("on-failure:3" if name == "topics" else "unless-stopped")


def mebibytes(text: str) -> int:
    """Reads `512m`, `512mb` and `1g`."""
    number, unit = re.fullmatch(r"(\d+)([mg])b?", text, re.IGNORECASE).groups()  # type: ignore[union-attr]
    return int(number) * (1024 if unit.lower() == "g" else 1)


def test_limits_of_compose_leave_room_above_those_that_a_service_has_itself() -> None:
    """The heap of Kafka and of its tool, and the documents in Redis. What is stored is neither lost nor evicted."""
    command = " ".join(SERVICES["redis"]["command"])
    own = {name: SERVICES[name]["environment"]["KAFKA_HEAP_OPTS"].partition("-Xmx")[2] for name in ("kafka", "topics")}
    own["redis"] = command.partition("--maxmemory ")[2].split()[0]
    for name, limit in own.items():
        assert mebibytes(SERVICES[name]["mem_limit"]) >= 2 * mebibytes(limit)
    assert all(option in command for option in ("--appendonly yes", "--maxmemory-policy noeviction"))
    assert "--config cleanup.policy=compact" in SERVICES["topics"]["command"][0]


def test_the_api_trusts_the_network_of_the_front_alone() -> None:
    [inside] = COMPOSE["networks"]["inside"]["ipam"]["config"]
    assert SERVICES["api"]["environment"]["LEADVIEW_API_TRUSTED_PROXIES"] == inside["subnet"]
    [subnet] = networks(inside["subnet"])
    assert subnet.is_private


def locked(file: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def test_the_image_has_every_dependency_in_the_tested_version() -> None:
    """A lock is older than pyproject.toml where this fails: `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {"requirements.txt": project["dependencies"]}
    wanted |= {f"requirements-{extra}.txt": extras[extra] for extra in extras.keys() - {"dev", "devstack"}}
    for file, dependencies in wanted.items():
        assert {re.split(r"[\[<>=; ]", dependency)[0] for dependency in dependencies} <= locked(file).keys()
        assert locked("requirements.txt").items() <= locked(file).items()
        assert f"COPY {file} .\n" in DOCKERFILE


def test_the_dockerfile_names_no_registry_and_ends_without_root() -> None:
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}", "build", "base"}
    assert ("http" in DOCKERFILE, "--require-hashes" in DOCKERFILE) == (False, True)
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE) == ["10001:10001", "root", "10001:10001"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_pod_may_do_nothing_that_it_does_not_need(name: str) -> None:
    """Beside what the Pod Security Standard `restricted` demands. Clouds give rights to accounts, such as to Kafka."""
    program = PROGRAMS[name]
    assert program.container["securityContext"]["readOnlyRootFilesystem"] is True
    assert (
        program.pod["securityContext"].items() >= dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001).items()
    )
    account = "leadview-api" if name == "api" else "leadview-projector"
    # For the Service leadview-api, Kubernetes would set LEADVIEW_API_PORT=tcp://…, and no program would start.
    assert (program.pod["serviceAccountName"], program.pod["enableServiceLinks"]) == (account, False)
    mounting = program.pod, resource("base", "ServiceAccount", account)
    assert [each["automountServiceAccountToken"] for each in mounting] == [False, False]


@pytest.mark.parametrize("name", PROGRAMS)
def test_files_of_settings_are_mounted_and_no_others(name: str) -> None:
    pod, container, environment, _ = PROGRAMS[name]
    secrets, own = (
        next(each for each in container["volumeMounts"] if bool(each.get("readOnly")) is kept) for kept in (True, False)
    )
    assert secrets["mountPath"] == SECRETS
    assert "subPath" not in secrets, "such a file would keep the secret of the start"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    projected = volumes[secrets["name"]]["projected"]
    items = [item for source in projected["sources"] for item in next(iter(source.values()))["items"]]
    named = {value for setting, value in environment.items() if setting.endswith("_FILE")}
    assert ({f"{SECRETS}/{item['path']}" for item in items}, projected["defaultMode"]) == (named, 0o440)
    assert (own["mountPath"], volumes[own["name"]]["emptyDir"]["medium"]) == ("/tmp", "Memory")  # noqa: S108


def test_commands_of_pods_exist() -> None:
    assert API.container["command"] == ["python", "-m", "api"] == SERVICES["api"]["command"]
    for name in PROGRAMS.keys() - {"api"}:
        python, option, module, *words = PROGRAMS[name].container["command"]
        assert (python, option, module) == ("python", "-m", "projector")
        arguments.parse(words)


def test_ports_are_those_of_the_image_and_the_settings() -> None:
    exposed = {int(port) for port in re.findall(r"^EXPOSE (.*)", DOCKERFILE, re.MULTILINE)[0].split()}
    for program in (API, PROJECTOR):
        ports = {port["containerPort"] for port in program.container["ports"]}
        assert ports == {int(value) for name, value in program.environment.items() if name.endswith("_PORT")}
        assert ports <= exposed
        hosts = {value for name, value in program.environment.items() if name.endswith("_HOST")}
        assert hosts == {"::"}, "pods of some clusters have addresses of IPv6 alone"
    assert API.container["resources"]["requests"]["cpu"] == API.environment["LEADVIEW_API_WORKERS"], "a core for each"


def test_pod_is_killed_only_if_it_does_not_turn_and_ready_only_if_it_does_its_work() -> None:
    for name, port, turns, works in (
        ("api", "http", "/healthz", "/readyz"),
        ("projector", "metrics", "/livez", "/healthz"),
        ("verify", "metrics", "/livez", "/healthz"),
    ):
        for probe, path in (("startupProbe", turns), ("livenessProbe", turns), ("readinessProbe", works)):
            assert PROGRAMS[name].container[probe]["httpGet"] == {"path": path, "port": port}
        # Kubernetes would give up after ten minutes, while the first fill lasts.
        assert resource("base", "Deployment", f"leadview-{name}")["spec"]["progressDeadlineSeconds"] == 3600


def test_drain_lasts_until_readiness_has_failed_and_ends_before_the_program_is_killed() -> None:
    drain = float(API.environment["LEADVIEW_API_DRAIN_SECONDS"])
    readiness = API.container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < drain
    assert drain + SHUTDOWN_SECONDS < API.pod["terminationGracePeriodSeconds"]
    unit = (SYSTEMD / "leadview-api.service").read_text()
    drain = float(found(r"LEADVIEW_API_DRAIN_SECONDS=(\d+)", unit))
    assert drain + SHUTDOWN_SECONDS < float(found(r"TimeoutStopSec=(\d+)", unit))


def test_the_topics_of_kubernetes_fit_the_largest_record() -> None:
    for each in resources("strimzi"):
        if each["kind"] == "KafkaTopic":
            largest = each["spec"]["config"]["max.message.bytes"]
            assert largest > MAX_RECORD_BYTES + MAX_HEADER_BYTES + MAX_KEY_BYTES
            assert each["spec"]["config"]["min.insync.replicas"] < each["spec"]["replicas"]


def test_the_user_of_kafka_is_that_of_the_settings_and_writes_nothing() -> None:
    user = resource("strimzi", "KafkaUser", PROJECTOR.environment["LEADVIEW_KAFKA_SASL_USERNAME"])["spec"]
    assert PROJECTOR.environment["LEADVIEW_KAFKA_SASL_MECHANISM"].lower() == user["authentication"]["type"]
    rights, group = user["authorization"]["acls"], ProjectorSettings().group_id
    groups = {each["resource"]["name"] for each in rights if each["resource"]["type"] == "group"}
    assert groups == {group, f"{group}."}
    assert {operation for each in rights for operation in each["operations"]} == {"Read", "Describe", "DescribeConfigs"}


def test_projectors_are_scaled_by_their_lag_up_to_the_number_of_partitions() -> None:
    spec = resource("components/keda", "ScaledObject", "leadview-projector")["spec"]
    assert metrics.LAG.name in spec["triggers"][0]["metadata"]["query"]
    assert spec["maxReplicaCount"] == resource("strimzi", "KafkaTopic", "crm.leads")["spec"]["partitions"]
    base = resource("base", "HorizontalPodAutoscaler", "leadview-projector")["spec"]
    assert [base[name] for name in ("minReplicas", "maxReplicas", "behavior")] == [
        spec["minReplicaCount"],
        spec["maxReplicaCount"],
        spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    ]


def test_the_monitor_tells_installations_apart() -> None:
    [endpoint] = resource("components/monitoring", "PodMonitor", "leadview")["spec"]["podMetricsEndpoints"]
    [relabeling] = endpoint["relabelings"]
    assert relabeling["targetLabel"] in Options().labels
    pairs = [label for each in KUSTOMIZATION["labels"] if each["includeTemplates"] for label in each["pairs"]]
    known = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-z]', '_', label)}" for label in pairs}
    assert set(relabeling["sourceLabels"]) <= known


def test_network_policies_name_the_ports_of_the_settings() -> None:
    default, kafka, api = (
        resource("base", "NetworkPolicy", f"leadview-{name}")["spec"] for name in ("default", "kafka", "api")
    )
    assert f":{default['egress'][1]['ports'][0]['port']}/" in API.environment["LEADVIEW_REDIS_URL"]
    port = kafka["egress"][0]["ports"][0]["port"]
    assert PROJECTOR.environment["LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"].endswith(f":{port}")
    assert str(api["ingress"][0]["ports"][0]["port"]) == API.environment["LEADVIEW_API_PORT"]
    [expression] = kafka["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {f"leadview-{name}" for name in PROGRAMS.keys() - {"api"}}


def analyze(*words: str | Path) -> None:
    """Asks systemd-analyze, which does not object."""
    program = installed("systemd-analyze", "systemd")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.heavy
def test_systemd_accepts_the_units_and_thinks_well_of_their_exposure(tmp_path: Path) -> None:
    """1.6 of 10, and more without any one of the limits. What remains is the network, and what only root passes."""
    units = [*UNITS, SYSTEMD / "leadview-verify.timer"]
    for unit in units:
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    for unit in units:
        analyze("verify", tmp_path / unit.name)
    for unit in UNITS:
        analyze("security", "--offline=yes", "--threshold=16", "--no-pager", unit)


def test_all_units_run_as_the_user_that_sysusers_makes() -> None:
    """A user that systemd makes for each start could not read a secret that only one user may read."""
    user = found(r"^u (\S+)", (SYSTEMD / "leadview.sysusers.conf").read_text())
    assert {found(r"^User=(\S+)", unit.read_text()) for unit in UNITS} == {user}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("unit", "words"), [("leadview-api.service", ["api"]), ("leadview-projector@.service", ["projector", "run"])]
)
def test_what_no_restart_repairs_is_not_started_again(unit: str, words: list[str]) -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", *words],
        env={"PATH": "", "LEADVIEW_API_PORT": "none", "LEADVIEW_BATCH_RECORDS": "none"},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert str(wrong.returncode) in found(r"RestartPreventExitStatus=(.+)", (SYSTEMD / unit).read_text()).split()


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match, pattern
    return match[1]


FILES = (
    "pyproject.toml",
    "Dockerfile",
    ".dockerignore",
    "compose.yaml",
    "schemas/version.py",
    "docs/generate/openapi.py",
    "deploy/kubernetes/base/kustomization.yaml",
    *(RELEASED := ("docs/schemas/asyncapi.json", "api/openapi.json")),
)
VERSION = version_of(ROOT)
CHANGELOG = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-12-31\n\nThe first.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What the checks read, as it is here, with the changelog and the contracts of a release."""
    for path in FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / path)
    for path in RELEASED:
        (tmp_path / "docs/released").mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / "docs/released")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(directory: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", *words]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def commit(directory: Path) -> None:
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--allow-empty", "--message=a change")


@pytest.mark.heavy
def test_version_is_the_same_in_every_place(repository: Path) -> None:
    assert (list(problems(repository)), main(["check"], repository)) == ([], 0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        ("pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"', "pyproject.toml has 9.9.9"),
        ("schemas/version.py", VERSION, "9.9.9", "schemas/version.py has 9.9.9"),
        ("compose.yaml", f"leadview:{VERSION}", "leadview:9.9.9", "compose.yaml has 0"),
        ("compose.yaml", f"leadview-sample:{VERSION}", "leadview-sample:9.9.9", "9.9.9"),
        ("Dockerfile", f'image.version="{VERSION}"', 'image.version="9.9.9"', "Dockerfile has 9.9.9"),
        ("deploy/kubernetes/base/kustomization.yaml", f"newTag: {VERSION}", "newTag: 9.9.9", "has 9.9.9"),
        ("docs/schemas/asyncapi.json", f'"version": "{VERSION}"', '"version": "9.9.9"', "asyncapi.json has 9.9.9"),
        ("api/openapi.json", '"version": "', '"version": "9', "openapi"),
        ("CHANGELOG.md", f"[{VERSION}]", "[9.9.9]", "a section for it"),
        ("CHANGELOG.md", " - 2026-12-31", "", "no date"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- New.\n", "move them"),
        ("CHANGELOG.md", "## [Unreleased]\n", "", "add an empty one"),
        ("docs/released/asyncapi.json", '"crm.', '"old.', "asyncapi.json: copy it"),
        (".dockerignore", "!api\n", "", "the line !api"),
    ],
)
def test_what_is_wrong_is_named(repository: Path, path: str, old: str, new: str, named: str) -> None:
    text = (repository / path).read_text()
    assert old in text
    (repository / path).write_text(text.replace(old, new, 1))
    commit(repository)
    found = list(problems(repository))
    assert any(named in problem for problem in found), found
    assert (main([], repository), (repository / "dist").exists()) == (1, False)


@pytest.mark.heavy
def test_tree_with_changes_is_refused(repository: Path) -> None:
    (repository / "new.txt").touch()
    assert list(problems(repository)) == ["1 files are not committed, such as new.txt: commit or remove them."]


@pytest.mark.heavy
def test_version_is_released_once(repository: Path) -> None:
    git(repository, "tag", f"v{VERSION}")
    assert list(problems(repository)) == []
    commit(repository)
    [problem] = problems(repository)
    assert "raise the version" in problem


@pytest.mark.heavy
def test_context_of_the_image_names_existing_files() -> None:
    assert {"requirements.txt", "api", "projector", "schemas", "leadview"} <= set(context_of(ROOT))
    assert all((ROOT / path).exists() for path in context_of(ROOT))


@pytest.mark.heavy
def test_the_constraints_are_those_of_the_lock() -> None:
    """With the conditions under which a dependency is wanted, and without hashes: the wheel would need one, too."""
    lock, found = (ROOT / "requirements.txt").read_text("utf-8"), constraints(ROOT)
    assert [line.split()[0] for line in found.splitlines()] == re.findall(r"^[a-z].*?==\S+", lock, re.MULTILINE)
    assert (found.count(" ; "), "uvloop" in found, "--hash" in found) == (lock.count(" ; "), True, False)


@pytest.mark.heavy
def test_other_words_are_refused() -> None:
    assert main(["publish"]) == 2


def test_each_supported_version_is_tested_and_named() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yaml").read_text())["jobs"]
    values = {name: next(iter(job["strategy"]["matrix"].values())) for name, job in jobs.items() if "strategy" in job}
    assert values["python"] == [version.number for version in VERSIONS if version.program == "Python"]
    assert values["redis"] == [version.image for version in VERSIONS if version.image]
    assert values["kafka"] == [version.exact for version in VERSIONS if version.exact]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert values["python"] == [name.rpartition(" ")[2] for name in classifiers if ":: 3." in name]
    assert set((ROOT / ".ci/versions").read_text().splitlines()) <= set(map(str, VERSIONS))


def test_the_image_validates_events_with_the_line_of_the_page() -> None:
    """The shell writes the names of the files, so they have to be the same inside of the container."""
    page = (ROOT / "docs" / "events.md").read_text("utf-8")
    folder, inside, words = re.findall(r'docker run --rm --volume "\$PWD/(\w+):(\S+):ro" <image> leadview (.+)', page)[
        0
    ]
    assert inside == f"{found(r'^WORKDIR (/app)$', DOCKERFILE)}/{folder}"
    assert arguments.parser_of("leadview").parse_args(words.split()).files == [f"{folder}/*.jsonl"]
    assert "COPY leadview leadview" in DOCKERFILE


@pytest.mark.parametrize("path", ["Makefile", ".ci/parts.mk"])
def test_renovate_watches_each_tool_that_make_installs(path: str) -> None:
    text = (ROOT / path).read_text()
    pinned = set(re.findall(r"[\w.-]+(?:/[\w.-]+)+@v[\d.]+|[\w-]+(?:\[\w+\])?==[\d.]+", text))
    managers = orjson.loads((ROOT / "renovate.json").read_bytes())["customManagers"]
    expressions = [
        expression.replace("(?<", "(?P<")
        for manager in managers
        if any(re.search(pattern.strip("/"), path) for pattern in manager["managerFilePatterns"])
        for expression in manager["matchStrings"]
    ]
    watched = {match[0].split()[-1] for expression in expressions for match in re.finditer(expression, text)}
    assert pinned
    assert pinned - watched == set()


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_actions_of_workflows_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
