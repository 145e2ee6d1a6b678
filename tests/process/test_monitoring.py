"""What watches agents from outside: a real Prometheus, Grafana's types, the health check of the image."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.agent import ROOT, Agent, free_port, wait_until
from tests.conftest import AgentFactory

PROMETHEUS = ROOT / "contrib" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "contrib" / "grafana" / "solar-host.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "solar-host.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"].replace("$host", ".*").replace("$__rate_interval", "1m")
    for panel in PANELS
    for target in panel["targets"]
]
GPUS = '[{"index": 0, "name": "A100", "total_gb": 80, "used_gb": 10}]'


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, agent_with_everything: Agent
) -> Iterator["Prometheus"]:
    """Reads that agent as contrib/prometheus says, but for its address, and every second."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(PROMETHEUS, folder, dirs_exist_ok=True)
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["scrape_interval"] = "1s"
    job["static_configs"] = [{"targets": [f"127.0.0.1:{agent_with_everything.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "solar-host.key").write_text(f"{agent_with_everything.key}\n")
    prometheus = Prometheus(folder)
    try:
        wait_until(lambda: prometheus.ask("solarhost_instance_requests"), 30, "the first readings")
        yield prometheus
    finally:
        prometheus.end()


@pytest.fixture(scope="module")
def agent_with_everything(shared_agents: AgentFactory, gguf: Path) -> Agent:
    """With a GPU, a model server that runs, and a solar-control that does not answer."""
    agent = shared_agents(
        GPU_TELEMETRY_OVERRIDE=GPUS, SOLAR_CONTROL_URL="http://127.0.0.1:9", SOLAR_CONTROL_API_KEY="k"
    )
    agent.start()
    config = {"backend_type": "llamacpp", "alias": "chat", "model": str(gguf), "ctx_size": 512, "threads": 1}
    answer = agent.post(f"/instances/{agent.create(config)}/start")
    assert answer.status_code == 200, answer.text
    return agent


def test_prometheus_takes_the_configuration_and_the_rules(prometheus: "Prometheus") -> None:
    promtool(prometheus.folder, "check", "config", "prometheus.yml")


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    cases = ROOT / "tests" / "data" / "solar-host.rules.test.yml"
    for path in (cases, PROMETHEUS / "solar-host.rules.yml"):
        shutil.copy(path, tmp_path)
    promtool(tmp_path, "test", "rules", cases.name)
    named = set(re.findall(r'alertname="(\w+)"', cases.read_text()))
    assert {rule["alert"] for rule in RULES} - named == {"SolarHostMemoryNearlyFull"}


def test_no_alert_fires_for_an_agent_that_is_well(prometheus: "Prometheus") -> None:
    shown = {rule["alert"]: prometheus.ask(rule["expr"]) for rule in RULES}
    due = {name for name, result in shown.items() if result}
    assert due <= {"SolarHostControlLinkDown", "SolarHostDegraded", "SolarHostDiskNearlyFull"}
    assert "SolarHostControlLinkDown" in due


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_can_be_answered(prometheus: "Prometheus", query: str) -> None:
    """All of it, and each series that it names is there, by name and by the labels that it asks for."""
    prometheus.ask(query)
    for selector in re.findall(r"\w+_\w+\{[^}]*\}|\b(?:solarhost|process)_\w+", query):
        assert prometheus.ask(selector), f"nothing is called {selector}"


def test_the_page_names_every_metric(prometheus: "Prometheus") -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    names = prometheus.get("/api/v1/label/__name__/values")
    own = [name for name in names if name.startswith(("solarhost_", "process_"))]
    assert len(own) > 25
    assert [name for name in own if f"`{name}`" not in page] == []


def test_the_page_names_every_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []


def test_the_image_is_healthy_while_the_agent_answers(agent_with_everything: Agent) -> None:
    dockerfile = (ROOT / "contrib" / "docker" / "Dockerfile").read_text().replace("\\\n", "")
    check = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", dockerfile, re.MULTILINE)
    assert check
    for port, healthy in ((agent_with_everything.port, True), (free_port(), False)):
        environment = {**os.environ, "HOST": "0.0.0.0", "PORT": str(port)}
        done = subprocess.run(json.loads(check[1]), env=environment, capture_output=True, check=False)
        assert (done.returncode == 0) is healthy, done.stderr


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Read by Grafana's own types and written again, nothing of it is lost."""
    plugins.register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, again, "")) == []


def test_panels_have_their_own_place_and_number() -> None:
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places))
    assert {x for x, _ in places} == set(range(24))
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


class Prometheus:
    """A Prometheus with the configuration in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    "--config.file=prometheus.yml",
                    f"--web.listen-address=127.0.0.1:{port}",
                    f"--storage.tsdb.path={folder / 'data'}",
                ],
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, 30, "Prometheus")

    def get(self, path: str, **query: str) -> Any:
        answer = requests.get(self._url + path, params=query, timeout=10)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]

    def ask(self, query: str) -> list[Any]:
        """The series that a query results in."""
        result: list[Any] = self.get("/api/v1/query", query=query)["result"]
        return result

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            return requests.get(f"{self._url}/-/ready", timeout=5).status_code == 200
        except requests.ConnectionError:
            return False


def promtool(folder: Path, *words: str) -> None:
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Paths of what is not in `after` as it was in `before`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif before != after:
        yield path
