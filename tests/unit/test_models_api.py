"""The REST calls on models, through the application."""

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from solarhost.host import Host
from solarhost.modelstore.manifest import Entry, FileStamp, Manifest
from solarhost.problems import Problems
from solarhost.settings import Settings
from tests.in_process import client_of, settings_in


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return client_of(Host(settings))


@pytest.fixture
def folder(settings: Settings) -> Path:
    """A model of three files, as a pull would have left it."""
    folder = settings.models_dir / "hf--org--m"
    folder.mkdir(parents=True)
    stamps = {}
    for name in ("m-Q4.gguf", "m-Q8.gguf", "sub/config.json"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        stamps[name] = FileStamp(len(name), path.stat().st_mtime_ns)
    Manifest(settings.models_dir, Problems()).put(
        Entry(
            slug="hf--org--m",
            source_uri="huggingface://org/m",
            size_bytes=33,
            downloaded_at="2026-01-01T00:00:00+00:00",
            file_digests=dict.fromkeys(stamps, "0" * 64),
            files=stamps,
            name="M",
        )
    )
    return folder


def pull(client: FlaskClient, **body: Any) -> Any:
    defaults = {"source": "huggingface", "source_uri": "huggingface://org/m", "model_id": "org/m"}
    return client.post("/models/pull", json=defaults | body)


def test_the_list_is_what_the_manifest_says(client: FlaskClient, folder: Path) -> None:
    assert client.get("/models", headers={"X-API-Key": ""}).status_code == 401
    [model] = client.get("/models").get_json()
    assert model["name"] == "hf--org--m"
    assert model["path"] == str(folder)
    assert (model["model_name"], model["metadata"], model["file_filters"]) == ("M", {}, None)
    assert model["files"][0] == {"name": "m-Q4.gguf", "size_bytes": 9}


def test_a_pulled_model_answers_at_once(client: FlaskClient, folder: Path) -> None:
    answer = pull(client, file_filters=["*Q4*"], metadata=None, unknown_key=1)
    assert answer.status_code == 200
    assert answer.get_json() == {"path": str(folder), "cached": True, "source_uri": "huggingface://org/m"}
    assert client.get("/models/pulls").get_json() == []


@pytest.mark.parametrize(
    "body",
    [
        {"model_id": None},
        {"source": "harbor", "source_uri": "repo://a:1"},
        {"source": "s3"},
        {"source_uri": None},
        {"file_filters": "*.gguf"},
        {"file_filters": [1]},
        {"metadata": []},
        {"size_bytes": -1},
    ],
    ids=json.dumps,
)
def test_a_body_that_breaks_a_rule_is_a_422(client: FlaskClient, body: dict[str, Any]) -> None:
    answer = pull(client, **body)
    assert answer.status_code == 422
    assert answer.get_json()["errors"]


@pytest.mark.parametrize(
    "body",
    [
        {"source_uri": "repo://a:1"},
        {"source_uri": "huggingface://../etc"},
        {"source_uri": "local://m.gguf"},
        {"model_id": "../../etc"},
        {"source": "harbor", "source_uri": "huggingface://org/m", "harbor_ref": "p/a:1"},
        {"source": "harbor", "source_uri": "repo://a:1", "harbor_ref": "p/../a:1"},
        {"source": "harbor", "source_uri": "repo://a:1", "harbor_ref": "user@host/a:1 "},
    ],
    ids=json.dumps,
)
def test_a_source_that_makes_no_sense_is_an_invalid_request(
    client: FlaskClient, settings: Settings, body: dict[str, Any]
) -> None:
    answer = pull(client, **body)
    assert answer.status_code == 400
    error = answer.get_json()
    assert error["error"] == "invalid_request"
    assert error["status_code"] == 400
    assert error["source_uri"] == body.get("source_uri", "huggingface://org/m")
    assert not settings.models_dir.exists()


def test_deleting_a_model_removes_its_folder_and_entry(client: FlaskClient, folder: Path) -> None:
    answer = client.delete("/models/hf--org--m")
    assert answer.status_code == 200
    assert answer.get_json() == {
        "detail": "Model deleted",
        "name": "hf--org--m",
        "removed": ["m-Q4.gguf", "m-Q8.gguf", "sub/config.json"],
        "freed_bytes": 33,
        "remaining": 0,
    }
    assert [path.name for path in folder.parent.iterdir()] == ["manifest.json"]
    assert client.get("/models").get_json() == []
    assert client.delete("/models/hf--org--m").status_code == 404


def test_deleting_some_files_keeps_the_rest(client: FlaskClient, folder: Path) -> None:
    answer = client.delete("/models/hf--org--m", json={"filters": ["*Q8*", "sub/*"]}).get_json()
    assert (answer["removed"], answer["freed_bytes"], answer["remaining"]) == (
        ["m-Q8.gguf", "sub/config.json"],
        24,
        1,
    )
    assert [path.name for path in folder.iterdir()] == ["m-Q4.gguf"]
    [model] = client.get("/models").get_json()
    assert (model["size_bytes"], model["file_filters"]) == (9, ["m-Q4.gguf"])
    assert pull(client, file_filters=["m-Q4.gguf"]).get_json()["cached"] is True


def test_filters_that_match_nothing_delete_nothing(client: FlaskClient, folder: Path) -> None:
    for filters in ([], ["*Q9*"]):
        answer = client.delete("/models/hf--org--m", json={"filters": filters}).get_json()
        assert (answer["removed"], answer["freed_bytes"], answer["remaining"]) == ([], 0, 3)
    assert len(list(folder.rglob("*.*"))) == 3


@pytest.mark.parametrize("name", ["nothing", "..", "manifest.json", ".staging", "%2e%2e%2fetc"])
def test_only_what_the_manifest_names_can_be_deleted(client: FlaskClient, folder: Path, name: str) -> None:
    assert client.delete(f"/models/{name}").status_code in (404, 405)
    assert folder.is_dir()


def test_cancelling_an_unknown_pull_is_a_404(client: FlaskClient) -> None:
    assert client.delete("/models/pulls/pull-0").status_code == 404


def test_every_answer_is_documented(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    answers = paths["/models/pull"]["post"]["responses"]
    assert {"200", "400", "401", "404", "422", "500", "502", "503", "507"} <= set(answers)
    assert {"200", "404", "409"} <= set(paths["/models/{name}"]["delete"]["responses"])
    assert {"200", "404", "409"} <= set(paths["/models/pulls/{pull_id}"]["delete"]["responses"])
