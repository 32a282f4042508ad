"""Two installations, scraped by one real Prometheus as `deploy/monitoring` says: an alert names the one in trouble."""

import re
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
import yaml

from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import ROOT
from devstack.redis_server import RedisServer
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, not_available
from tests.harness.waiting import wait_until

MONITORING = ROOT / "deploy/monitoring"
INSTALLATIONS = ("production", "staging")
SECONDS = "1s"

pytestmark = pytest.mark.apache


class Prometheus:
    """One server with our rules, each of which fires after a second instead of minutes, and our configuration."""

    def __init__(self, folder: Path, targets: dict[str, list[str]]) -> None:
        configuration = yaml.safe_load((MONITORING / "prometheus.yaml").read_text("utf-8"))
        configuration["global"] = {"scrape_interval": SECONDS, "evaluation_interval": SECONDS}
        for named in configuration["scrape_configs"][0]["static_configs"]:
            named["targets"] = targets.pop(named["labels"]["installation"])
        assert not targets
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration), "utf-8")
        rules = (MONITORING / "rules.yaml").read_text("utf-8")
        (folder / "rules.yaml").write_text(
            re.sub(r"\bfor: \w+$", f"for: {SECONDS}", rules, flags=re.MULTILINE), "utf-8"
        )
        program = shutil.which("prometheus")
        if program is None:
            not_available("Prometheus is not installed: on Debian it is in the package prometheus")
        self._address = f"127.0.0.1:{free_port()}"
        options = f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"
        self.child = Child([program, *options, f"--web.listen-address={self._address}"], log=folder / "prometheus.log")

    def ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=5) as response:
                return orjson.loads(response.read())["data"]
        except OSError:
            self.child.check_running()
            return {"result": [], "alerts": []}

    def value(self, expression: str) -> dict[str, str]:
        """Returns what it finds, by installation."""
        found = self.ask(f"query?query={quote(expression)}")["result"]
        return {each["metric"]["installation"]: each["value"][1] for each in found}

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Returns the labels and the annotations of the alerts with this name."""
        found = (each for each in self.ask("alerts")["alerts"] if each["labels"]["alertname"] == alert)
        return [each["labels"] | each["annotations"] for each in found if each["state"] == "firing"]


@pytest.fixture
def installations(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[dict[str, Leadview]]:
    """Each with topics and a Redis of its own."""
    with ExitStack() as stack:
        found = {}
        for name in INSTALLATIONS:
            folder = tmp_path / name
            server = stack.enter_context(RedisServer.start(folder))
            found[name] = stack.enter_context(Leadview(kafka, f"{topic_prefix}{name}.", server, folder))
            found[name].topics.create()
        yield found


def test_production_without_projectors_is_named_beside_staging(
    installations: dict[str, Leadview], tmp_path: Path
) -> None:
    targets, projectors = {}, {}
    for name, leadview in installations.items():
        ports = free_port(), free_port()
        projectors[name] = leadview.start("run", metrics_port=ports[0])
        leadview.start_api(free_port(), metrics_port=ports[1])
        targets[name] = [f"127.0.0.1:{port}" for port in ports]
    prometheus = Prometheus(tmp_path, targets)
    try:
        alive = "max by (installation) (leadview_api_projectors)"
        both = dict.fromkeys(INSTALLATIONS, "1")
        wait_until(lambda: prometheus.value(alive) == both, "both installations have been scraped")
        wait_until(lambda: not prometheus.firing("LeadviewNoProjector"), "no alert is left from the start")
        projectors["production"].stop()
        named: list[dict[str, str]] = []

        def is_named() -> bool:
            named[:] = prometheus.firing("LeadviewNoProjector")
            return [alert["installation"] for alert in named] == ["production"]

        wait_until(is_named, "Prometheus says where there is no projector")
        [alert] = named
        assert alert["runbook_url"].endswith("/runbook.md#leadviewnoprojector")
        assert prometheus.value(alive) == {"production": "0", "staging": "1"}
    finally:
        prometheus.child.stop()
