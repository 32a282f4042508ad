"""compose.yaml, without an engine to run it: the Compose specification's schema, and what can be checked by reading.

`make test-images` shows, where an engine is, that the images start like this. `_IMAGES` notes what is relied on, from
their build files.
"""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import orjson
import pytest
import yaml

from docs.generate import tables
from schemas.resources import BY_TOPIC
from schemas.settings import ApiSettings, ProjectorSettings, RedisSettings, load, networks, variable

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TOPICS = {f"crm.{topic}" for topic in BY_TOPIC}
ONCE = {"topics"}

each_service = pytest.mark.parametrize("name", SERVICES)


class Image(NamedTuple):
    """What an image is known to be: its default user, programs, and folders that are meant to be written."""

    user: str
    programs: set[str]
    writable: set[str]


_KAFKA_VOLUMES = {"/etc/kafka/secrets", "/mnt/shared/config", "/var/lib/kafka/data"}
_KAFKA = Image(
    "appuser",
    {"/bin/bash", "bash", "sh"},
    {"/tmp", "/opt/kafka/config", "/opt/kafka/logs"} | _KAFKA_VOLUMES,  # noqa: S108
)
_OURS = Image("10001:10001", {"python", "sh"}, {"/tmp"})  # noqa: S108
_IMAGES = {
    "apache/kafka": _KAFKA._replace(
        programs=_KAFKA.programs
        | {f"/opt/kafka/bin/{name}.sh" for name in ("kafka-broker-api-versions", "kafka-topics")}
    ),
    "redis": Image("root", {"redis-server", "redis-cli", "sh", "grep"}, {"/data"}),
    "caddy": Image("root", {"caddy", "curl", "wget", "sh"}, {"/data", "/config"}),
    "leadview": _OURS,
    "leadview-sample": _OURS,
}


def image_of(name: str) -> Image:
    return _IMAGES[SERVICES[name]["image"].partition(":")[0]]


def test_it_is_valid_by_the_compose_specification() -> None:
    schema = orjson.loads((ROOT / "tests/data/compose-spec.json").read_bytes())
    errors = [f"{error.instance_path}: {error.message}" for error in jsonschema_rs.iter_errors(schema, COMPOSE)]
    assert not errors


def test_the_schema_would_find_a_mistake() -> None:
    schema = orjson.loads((ROOT / "tests/data/compose-spec.json").read_bytes())
    assert not jsonschema_rs.is_valid(schema, {"services": {"api": {"imagee": "leadview"}}})


@each_service
def test_images_are_pinned_to_a_version(name: str) -> None:
    assert re.search(r":\d+\.\d+\.\d+(-alpine)?$", SERVICES[name]["image"])


@each_service
def test_no_service_runs_as_root(name: str) -> None:
    user = str(SERVICES[name].get("user") or image_of(name).user)
    assert user.partition(":")[0] not in ("0", "root")


@each_service
def test_every_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "front" else [])
    assert service["restart"] in (("on-failure:3",) if name in ONCE else ("unless-stopped",))


@each_service
def test_no_service_can_take_all_memory_or_processes(name: str) -> None:
    service = SERVICES[name]
    assert 32 <= service["pids_limit"] <= 1024
    assert mebibytes(service["mem_limit"]) <= 1280


def mebibytes(text: str) -> int:
    """Reads `512m`, `512mb` and `1g`."""
    number, unit = re.fullmatch(r"(\d+)([mg])b?", text, re.IGNORECASE).groups()  # type: ignore[union-attr]
    return int(number) * (1024 if unit.lower() == "g" else 1)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("kafka", r"-Xmx(\d+m)", id="the heap of Kafka"),
        pytest.param("topics", r"-Xmx(\d+m)", id="the heap of its tool"),
        pytest.param("redis", r"--maxmemory (\d+mb)", id="the documents in Redis"),
    ],
)
def test_limits_leave_room_above_those_that_a_service_has_itself(name: str, own: str) -> None:
    service = SERVICES[name]
    text = f"{service.get('environment')} {' '.join(service.get('command', []))}"
    found = re.search(own, text)
    assert found
    assert mebibytes(service["mem_limit"]) >= 2 * mebibytes(found[1])


def test_the_api_trusts_the_network_of_the_front_alone() -> None:
    [inside] = COMPOSE["networks"]["inside"]["ipam"]["config"]
    assert SERVICES["api"]["environment"]["LEADVIEW_API_TRUSTED_PROXIES"] == inside["subnet"]
    [subnet] = networks(inside["subnet"])
    assert subnet.is_private


def test_the_front_answers_json_for_what_is_not_ours() -> None:
    """tests/service/test_front.py tries it where Caddy is installed."""
    text = (ROOT / "deploy/Caddyfile").read_text("utf-8")
    bodies = [
        re.sub(r"\{http\.request\.uuid\}", "x", body).replace("\\{", "{").replace("\\}", "}")
        for body in re.findall(r"respond `(.*)`", text)
    ]
    assert [orjson.loads(body)["error"] for body in bodies] == [
        "method_not_allowed",
        "service_unavailable",
        "misdirected_request",
    ]
    statuses = [int(status) for status in re.findall(r"respond `.*` (\d+)", text)]
    assert [orjson.loads(body)["status"] for body in bodies] == statuses == [405, 503, 421]
    assert text.count("header Content-Type application/json") == len(bodies)
    assert text.index("https://:8443 {") > text.index("https://localhost:8443")


@each_service
def test_mounts_are_where_the_image_writes(name: str) -> None:
    service = SERVICES[name]
    volumes = [volume.split(":") for volume in service.get("volumes", [])]
    written = {path.partition(":")[0] for path in service.get("tmpfs", [])}
    # Docker gives each of them to root, with the mode of the folder in the image.
    assert all(path.startswith("/tmp") or path.endswith(":mode=1777") for path in service.get("tmpfs", []))  # noqa: S108
    written |= {target for source, target, *mode in volumes if mode != ["ro"]}
    assert written <= image_of(name).writable
    if image_of(name).user == "appuser":
        assert written >= _KAFKA_VOLUMES, "the engine would create a volume without a name for what is missing"
    named = {source for source, *_ in volumes if not source.startswith(".")}
    assert named <= COMPOSE["volumes"].keys()
    assert all((ROOT / source).is_file() for source, *_ in volumes if source.startswith("."))


@each_service
def test_health_is_asked_with_a_program_that_the_image_has(name: str) -> None:
    if name in ONCE:
        assert "healthcheck" not in SERVICES[name]
        return
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    assert kind in ("CMD", "CMD-SHELL")
    assert programs(words if kind == "CMD" else words[0]) <= image_of(name).programs


def programs(command: list[str] | str) -> set[str]:
    """Those that a command starts: the first word of each part, after variables that are set for it."""
    if not isinstance(command, str):
        return {command[0]}
    parts = [shlex.split(part) for part in command.split("|")]
    return {next(word for word in part if not re.match(r"[A-Z_]+=", word)) for part in parts}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("projector", ProjectorSettings, id="projector"),
        pytest.param("api", ApiSettings, id="api"),
        pytest.param("sample", ProjectorSettings, id="sample"),
    ],
)
def test_settings_are_known_and_valid(name: str, settings: type[RedisSettings]) -> None:
    environment = SERVICES[name]["environment"]
    assert environment.keys() <= {variable(field) for field in settings.__struct_fields__}
    written = {name: value for name, value in environment.items() if value is not None}  # None: as where compose runs
    assert all(isinstance(value, str) for value in written.values()), "numbers and booleans change on the way"
    load(settings, written)


@pytest.mark.parametrize("name", ["projector", "api", "sample"])
def test_commands_exist_and_are_in_the_image(name: str) -> None:
    program, option, module, *_ = SERVICES[name]["command"]
    assert (program, option) == ("python", "-m")
    found = importlib.util.find_spec(module)
    assert found is not None
    if found.submodule_search_locations:
        assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert f"COPY {module.partition('.')[0]} " in stage(SERVICES[name]["build"]["target"])


def stage(target: str) -> str:
    """The lines of a stage of the Dockerfile."""
    found = re.search(rf"^FROM \S+ AS {target}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_the_topics_are_those_of_the_contract_and_compacted() -> None:
    [script] = SERVICES["topics"]["command"]
    loop = re.search(r"for topic in (.*); do", script)
    assert loop
    line = (ROOT / "compose.yaml").read_text("utf-8").partition("for topic in ")[0].count("\n") + 1
    assert loop[1].split() == list(tables.TOPICS), f"compose.yaml:{line}: list {' '.join(tables.TOPICS)}"
    assert '"crm.$$topic"' in script
    assert "--config cleanup.policy=compact" in script
    assert "--if-not-exists" in script


def test_redis_keeps_every_document() -> None:
    options = shlex.join(SERVICES["redis"]["command"])
    for option in ("--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction", "--maxmemory "):
        assert option in options


def test_only_the_front_is_reached_from_outside_and_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"front": ["127.0.0.1:8443:8443"]}
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert {name for name, service in SERVICES.items() if service["networks"] != ["inside"]} == {"front"}


def test_addresses_are_names_and_ports_of_services() -> None:
    for name in ("projector", "api", "sample"):
        environment = SERVICES[name]["environment"]
        assert environment.get("LEADVIEW_REDIS_URL", "redis://redis:6379/0") == "redis://redis:6379/0"
        assert environment.get("LEADVIEW_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092") == "kafka:9092"
    assert SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    assert (
        f"reverse_proxy {{$FRONT_UPSTREAMS:api:{SERVICES['api']['environment']['LEADVIEW_API_PORT']}}}"
        in (ROOT / "deploy/Caddyfile").read_text()
    )


def test_nothing_starts_before_what_it_needs() -> None:
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert how == {"condition": wanted}


def test_the_image_has_every_dependency() -> None:
    """The lock is older than pyproject.toml where this fails: `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=; ]", dependency)[0] for dependency in project["dependencies"]}
    assert wanted <= set(locked("requirements.txt"))


def locked(file: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def test_each_extra_of_the_image_has_a_lock_with_the_tested_versions() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras.keys() - {"dev", "devstack"}:
        file = f"requirements-{extra}.txt"
        assert f"COPY {file} .\n" in stage("build")
        assert locked("requirements.txt").items() <= locked(file).items()
        assert {re.split(r"[\[<>=; ]", dependency)[0] for dependency in extras[extra]} <= set(locked(file))


def test_the_dockerfile_names_no_registry_and_ends_without_root() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(images) == {"${PYTHON_IMAGE}", "build", "base"}
    assert re.findall(r"^ARG (.*)", DOCKERFILE, re.MULTILINE) == ["PYTHON_IMAGE=python:3.12-slim", "EXTRA"]
    for target in ("base", "sample", "runtime"):
        users = re.findall(r"^USER (\S+)", stage(target), re.MULTILINE)
        assert users[-1:] in ([], ["10001:10001"])
    assert "--require-hashes" in DOCKERFILE
    assert "http" not in DOCKERFILE
