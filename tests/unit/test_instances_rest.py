"""REST calls on instances that start nothing: shapes, keys and errors."""

import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from solarhost.api.auth import KeyRing
from solarhost.host import Host
from solarhost.instances.store import InstanceStore
from solarhost.problems import Problems
from solarhost.settings import DEFAULT_API_KEY
from tests.in_process import KEY, client_of, settings_in

CONFIG = {"backend_type": "llamacpp", "alias": "m:1", "model": "/models/m.gguf"}


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    """A client of an agent that was built but not started: it holds no process and no thread."""
    return client_of(Host(settings_in(tmp_path, solar_control_api_key="control-key")))


def create(client: FlaskClient, **config: Any) -> dict[str, Any]:
    answer = client.post("/instances", json={"config": {**CONFIG, **config}})
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json())


@pytest.mark.parametrize(
    "headers",
    [{"X-API-Key": KEY}, {"X-API-Key": "control-key"}, {"Authorization": f"Bearer {KEY}"}],
)
def test_each_accepted_key_opens_the_api(client: FlaskClient, headers: dict[str, str]) -> None:
    client.environ_base.pop("HTTP_X_API_KEY")
    assert client.get("/instances", headers=headers).status_code == 200


@pytest.fixture
def keyless(tmp_path: Path) -> FlaskClient:
    """A client of an agent without an API_KEY."""
    return client_of(Host(settings_in(tmp_path, api_key=DEFAULT_API_KEY)))


def test_with_the_default_key_an_instance_is_for_this_machine_unless_it_says_otherwise(
    keyless: FlaskClient,
) -> None:
    made = create(keyless)
    assert made["instance"]["config"]["host"] == "127.0.0.1"
    assert made["warnings"] == [
        "it will listen on 127.0.0.1, since API_KEY is the default one: "
        "for others to reach it, set API_KEY and its host"
    ]

    def warnings(host: str) -> Any:
        body = {"config": {**CONFIG, "host": host}}
        answer = keyless.put(f"/instances/{made['instance']['id']}", json=body).get_json()
        assert answer["instance"]["config"]["host"] == host
        return answer["warnings"]

    assert warnings("127.0.0.1") == []
    assert warnings("0.0.0.0") == [
        "it will listen on 0.0.0.0 and take the default API_KEY: set API_KEY, or its host to 127.0.0.1"
    ]


def test_an_alias_that_another_instance_has_is_taken_with_a_warning(client: FlaskClient) -> None:
    first, second = create(client), create(client)
    ids = [made["instance"]["id"] for made in (first, second)]
    assert first["warnings"] == []
    assert second["warnings"] == [f"alias 'm:1' is also that of instance {ids[0]}"]
    assert create(client)["warnings"] == [f"alias 'm:1' is also that of instance {ids[0]} and of 1 more"]

    def renamed(alias: str) -> Any:
        return client.put(f"/instances/{ids[0]}", json={"config": {**CONFIG, "alias": alias}}).get_json()

    assert renamed("m:2")["warnings"] == []
    assert renamed("m:1")["warnings"] == [f"alias 'm:1' is also that of instance {ids[1]} and of 1 more"]


@pytest.mark.parametrize("path", ["/instances", "/resources", "/models"])
@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"Host": "localhost:8001", "Origin": "http://localhost:8001"}, True),
        ({"Host": "127.0.0.1:8001", "Origin": "http://localhost:3000"}, True),
        ({"Host": "[::1]:8001"}, True),
        ({"Host": "127.0.0.1:8001", "Origin": "https://example.com"}, False),
        ({"Host": "127.0.0.1:8001", "Origin": "https://localhost.example.com"}, False),
        ({"Host": "127.0.0.1:8001", "Origin": "null"}, False),
        ({"Host": "127.0.0.1:8001", "Origin": "http://["}, False),
        ({"Host": "example.com:8001"}, False),
    ],
)
def test_the_default_key_opens_nothing_for_a_page_of_elsewhere(
    keyless: FlaskClient, client: FlaskClient, path: str, headers: dict[str, str], let_in: bool
) -> None:
    assert keyless.get(path, headers=headers).status_code == (200 if let_in else 401)
    assert client.get(path, headers=headers).status_code == 200, "a key of one's own opens for all"


@pytest.mark.parametrize(
    "headers", [{}, {"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY + "\udce4"}]
)
def test_without_a_key_nothing_is_answered(client: FlaskClient, headers: dict[str, str]) -> None:
    client.environ_base.pop("HTTP_X_API_KEY")
    for path in ("/instances", "/memory", "/nowhere", f"/instances?api_key={KEY}"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.get_json() == {"detail": "Invalid or missing API key"}


def test_every_path_that_is_not_meant_to_be_open_is_closed(client: FlaskClient) -> None:
    client.environ_base.pop("HTTP_X_API_KEY")
    opened = set()
    for rule in client.application.url_map.iter_rules():
        path = rule.rule.replace("<", "").replace(">", "")
        for method in (rule.methods or set()) - {"OPTIONS"}:
            if client.open(path, method=method).status_code != 401:
                opened.add(path)
    assert opened == {
        *("/", "/health", "/docs", "/redoc", "/openapi.json", "/docs/static/name"),
        *("/ui", "/ui/", "/ui/name"),
    }


def test_every_key_is_compared_in_full_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare_digest(given, key)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = KeyRing(["first", "second"])
    assert [ring.refusal(given, {}) is None for given in ("first", "second", "f", "")] == [
        True,
        True,
        False,
        False,
    ]
    assert compared == [b"first", b"second"] * 4


def test_open_paths_need_no_key(client: FlaskClient) -> None:
    client.environ_base.pop("HTTP_X_API_KEY")
    for path in ("/", "/health", "/docs", "/openapi.json", "/docs/static/swagger-ui.css"):
        assert client.get(path).status_code == 200, path
    assert client.options("/instances").status_code == 200


def test_any_origin_may_call_without_credentials(client: FlaskClient) -> None:
    answer = client.options("/instances", headers={"Origin": "http://x"})
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "X-API-Key" in answer.headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_the_root_says_what_this_is(client: FlaskClient) -> None:
    about = client.get("/").get_json()
    assert about["service"] == "solar-host"
    assert "llamacpp" in about["supported_backends"]


def test_a_created_instance_carries_its_defaults(client: FlaskClient) -> None:
    made = create(client, api_key="k")["instance"]
    assert made["config"]["ctx_size"] == 131072
    assert made["config"]["api_key"] == "k"
    assert made["supported_endpoints"] == ["/v1/chat/completions", "/v1/completions", "/v1/models"]
    assert made["served_model_name"] == "m:1"
    assert client.get(f"/instances/{made['id']}").get_json() == made
    assert client.get("/instances").get_json() == [made]


def test_a_flat_body_is_taken_as_the_config(client: FlaskClient) -> None:
    answer = client.post("/instances", json={**CONFIG, "priority": "staging", "managed_by": "me"})
    made = answer.get_json()["instance"]
    assert (made["config"]["alias"], made["priority"], made["managed_by"]) == ("m:1", "staging", "me")
    assert "priority" not in made["config"]


def test_a_config_that_was_read_can_be_sent_back(client: FlaskClient) -> None:
    made = create(client)["instance"]
    answer = client.put(f"/instances/{made['id']}", json={"config": made["config"]})
    assert answer.get_json()["instance"]["config"] == made["config"]
    assert create(client, **made["config"])["instance"]["config"] == made["config"]


def test_an_unknown_field_is_kept_and_warned_about(client: FlaskClient) -> None:
    answer = create(client, ctxsize=5)
    assert answer["instance"]["config"]["ctxsize"] == 5
    assert answer["warnings"] == ["unknown field 'ctxsize' ignored; did you mean 'ctx_size'?"]


@pytest.mark.parametrize(
    ("given", "backend"),
    [
        ({"alias": "a", "model": "/m.gguf"}, "llamacpp"),
        ({"alias": "a", "model": "/m.gguf", "backend_type": None}, "llamacpp"),
    ],
)
def test_a_config_of_an_earlier_version_finds_its_backend(
    client: FlaskClient, given: dict[str, Any], backend: str
) -> None:
    made = client.post("/instances", json={"config": given}).get_json()["instance"]
    assert made["config"]["backend_type"] == backend


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"config": {"alias": "a"}}, "model"),
        ({"config": {**CONFIG, "temp": "hot"}}, "temp"),
        ({"config": {**CONFIG, "temp": 3}}, "temp"),
        ({"config": {**CONFIG, "alias": "a\nb"}}, "alias"),
        ({"config": {**CONFIG, "backend_type": "vllm"}}, "backend_type"),
        ({"config": {**CONFIG, "backend_type": 5}}, "backend_type"),
        ({"config": None}, "config"),
        ({"config": []}, "config"),
        ({"config": CONFIG, "priority": "urgent"}, "priority"),
        ({"config": CONFIG, "gpu_ids": [0, 0]}, "gpu_ids"),
        ({"config": CONFIG, "gpu_ids": ["0,1"]}, "gpu_ids"),
        ({"config": CONFIG, "vram_gb": -1}, "vram_gb"),
        ({"config": CONFIG, "vram_gb": "NaN"}, "vram_gb"),
        ({"config": CONFIG, "managed_by": "x" * 201}, "managed_by"),
        ([], None),
        (5, None),
    ],
)
def test_bad_input_is_named_and_creates_nothing(client: FlaskClient, body: Any, field: str | None) -> None:
    answer = client.post("/instances", json=body)
    assert answer.status_code == 422, answer.text
    error = answer.get_json()
    assert isinstance(error["detail"], str)
    if field:
        assert field in error["errors"]
        assert field in error["detail"]
    assert client.get("/instances").get_json() == []


def test_what_an_instance_has_beside_its_config_is_changed_key_by_key(client: FlaskClient) -> None:
    path = f"/instances/{create(client)['instance']['id']}"
    given = {"priority": "staging", "managed_by": "me", "gpu_ids": [1, "GPU-a"], "vram_gb": 2.5}

    def put(**body: Any) -> dict[str, Any]:
        answer = client.put(path, json=body)
        assert answer.status_code == 200, answer.text
        return {key: answer.get_json()["instance"][key] for key in given}

    assert put(**given) == given
    assert put(vram_gb=3) == given | {"vram_gb": 3}
    assert put(gpu_ids=None, vram_gb=None) == given | {"gpu_ids": None, "vram_gb": None}
    for wrong in ({"vram_gb": -1}, {"gpu_ids": [1, 1]}, {"priority": "urgent"}, {"priority": None}):
        assert client.put(path, json={**wrong, "managed_by": "other"}).status_code == 422
    assert client.get(path).get_json()["managed_by"] == "me", "nothing was changed"


def test_broken_json_and_other_kinds_of_body_are_told_apart(client: FlaskClient) -> None:
    broken = client.post("/instances", data="{", content_type="application/json")
    assert broken.status_code == 400
    other = client.post("/instances", data="alias=a", content_type="application/x-www-form-urlencoded")
    assert other.status_code == 415
    assert all(isinstance(answer.get_json()["detail"], str) for answer in (broken, other))


def test_an_unknown_instance_is_404_everywhere(client: FlaskClient) -> None:
    calls = [
        ("GET", ""),
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "/start"),
        ("POST", "/stop"),
        ("POST", "/restart"),
        ("GET", "/state"),
        ("GET", "/logs"),
        ("GET", "/last-generation"),
        ("GET", "/usage"),
    ]
    for method, path in calls:
        for instance_id in ("nope", "..", "*", "%2e%2e%2fetc", "a" * 300):
            answer = client.open(
                f"/instances/{instance_id}{path}", method=method, json={} if method == "PUT" else None
            )
            assert answer.status_code == 404, (method, path, instance_id)
            assert "detail" in answer.get_json()


def test_unknown_paths_and_methods_are_json_too(client: FlaskClient) -> None:
    assert client.get("/nowhere").get_json()["detail"]
    answer = client.delete("/instances")
    assert answer.status_code == 405
    assert answer.get_json()["detail"]
    assert "GET" in answer.headers["Allow"]


def test_the_log_of_one_that_never_ran_is_empty(client: FlaskClient) -> None:
    instance_id = create(client)["instance"]["id"]
    assert client.get(f"/instances/{instance_id}/logs").get_json() == []
    assert client.get(f"/instances/{instance_id}/logs?run=1").status_code == 404
    for query in ("tail=x", "tail=-1", "since=x", "run=0"):
        assert client.get(f"/instances/{instance_id}/logs?{query}").status_code == 422


def test_a_bad_time_is_400_and_no_generation_404(client: FlaskClient) -> None:
    url = f"/instances/{create(client)['instance']['id']}/last-generation"
    assert client.get(url).status_code == 404
    assert client.get(f"{url}?after=yesterday").status_code == 400
    assert client.get(f"{url}?after=2026-01-01T00:00:00Z&within_s=5").status_code == 404


def test_before_any_start_there_is_a_state_and_a_usage(client: FlaskClient) -> None:
    instance_id = create(client)["instance"]["id"]
    state = client.get(f"/instances/{instance_id}/state").get_json()
    assert (state["instance_id"], state["busy"], state["phase"]) == (instance_id, False, "idle")
    usage = client.get(f"/instances/{instance_id}/usage").get_json()
    assert (usage["backend_type"], usage["prompt_tokens_total"]) == ("llamacpp", None)


def test_a_source_that_was_not_pulled_says_to_pull_first(client: FlaskClient) -> None:
    config = {"alias": "a", "backend_type": "llamacpp", "model_source": "huggingface://org/model"}
    answer = client.post("/instances", json={"config": config})
    assert answer.status_code == 422
    assert "pull" in answer.get_json()["detail"]


def test_the_list_follows_every_change(client: FlaskClient) -> None:
    assert client.get("/instances").get_json() == []
    made = create(client)["instance"]
    assert [i["id"] for i in client.get("/instances").get_json()] == [made["id"]]
    client.put(f"/instances/{made['id']}", json={"managed_by": "me"})
    assert client.get("/instances").get_json()[0]["managed_by"] == "me"
    client.delete(f"/instances/{made['id']}")
    assert client.get("/instances").get_json() == []


def test_every_operation_is_documented_with_its_errors(client: FlaskClient) -> None:
    document = json.loads(client.get("/openapi.json").data)
    start = document["paths"]["/instances/{instance_id}/start"]["post"]
    assert {"200", "404", "500", "503"} <= set(start["responses"])
    assert document["security"] == [{"key": []}]
    page = client.get("/docs").text
    assert "persistAuthorization" in page
    assert "http" not in "".join(line for line in page.splitlines() if "src=" in line or "href=" in line)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("NaN", "NaN is no JSON"),
        ("-Infinity", "-Infinity is no JSON"),
        ("1e999", "1e999 is too large"),
        ("9" * 5000, "digits"),
        ("[" * 101 + "]" * 101, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 50_000, "nested too deep"),
    ],
    ids=lambda value: value[:20],
)
def test_json_that_not_everyone_could_read_again_is_refused(
    client: FlaskClient, value: str, why: str
) -> None:
    body = f'{{"config": {{"alias": "a", "model": "/m.gguf", "unknown": {value}}}}}'
    answer = client.post("/instances", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert why in answer.json["detail"]
    assert client.get("/instances").json == []


def test_the_deepest_config_that_is_taken_can_be_read_again(client: FlaskClient, tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(97):
        deep = [deep]
    create(client, unknown=deep)
    again = InstanceStore(tmp_path / "config.json", Problems(), lambda config: config)
    again.load()
    assert [record.config["unknown"] for record in again.all()] == [deep]


def test_a_change_of_state_that_could_not_be_written_down_is_answered_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    made = create(client_of(Host(settings_in(folder))))["instance"]
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"stopped"', '"failed"'))
    host = Host(settings_in(folder))
    host.instances.start()
    client = client_of(host)
    hidden = folder.rename(tmp_path / "hidden")
    answer = client.post(f"/instances/{made['id']}/stop").get_json()
    assert answer["instance"]["status"] == "stopped"
    assert "config.json could not be written" in answer["warnings"][0]
    hidden.rename(folder)
    host.instances.close(time.monotonic() + 10)
    assert json.loads(config.read_text())["instances"][0]["status"] == "stopped"
