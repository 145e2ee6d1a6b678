"""Pulls from a real registry, with TLS by a private CA and token login."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.process.models_faults import noise
from tests.process.models_puller import MakePuller, Puller, bytes_of
from tests.process.models_registry import PASSWORD, USER, Registry

MIB = 1 << 20
URI = "repo://model:v1"
pytest_plugins = ["tests.models_fixtures"]


@pytest.fixture(scope="module")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.end()


@pytest.fixture
def registry(registry_server: Registry) -> Iterator[Registry]:
    yield registry_server
    registry_server.front.faults.clear()
    registry_server.front.basic = False


@pytest.fixture
def make(pullers: MakePuller, registry: Registry) -> MakePuller:
    return partial(
        pullers,
        harbor_url=registry.url,
        harbor_username=USER,
        harbor_password=PASSWORD,
        ssl_cert_file=str(registry.authority.ca),
    )


@pytest.fixture
def behind_front(make: MakePuller, registry: Registry) -> Puller:
    """Pulls through the proxy that makes faults."""
    return make(harbor_url=registry.front.url, pull_stall_timeout_s=0.7, pull_retries=1)


def test_an_artifact_is_pulled_with_one_token(registry: Registry, make: MakePuller) -> None:
    weights = bytes_of(noise(3 * MIB))
    digest = registry.push(
        "lib/whole",
        [("model.gguf", weights), ("sub/config.json", b"{}"), (None, b"no file")],
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
    )
    puller = make()
    answer = puller.pull(URI, "lib/whole:v1")
    folder = puller.folder / "repo--model--v1"
    assert answer == {"path": str(folder), "cached": False, "source_uri": URI}
    assert puller.on_disk() == {
        "manifest.json",
        "repo--model--v1/model.gguf",
        "repo--model--v1/sub/config.json",
    }
    assert (folder / "model.gguf").read_bytes() == weights
    assert len(registry.front.faults.requests("/token")) == 1
    entry = json.loads((puller.folder / "manifest.json").read_text())["models"][0]
    assert entry["revision"] == digest
    assert set(entry["file_digests"]) == {"model.gguf", "sub/config.json"}

    registry.front.faults.clear()
    again = puller.pull(f"{URI}/model.gguf", "lib/whole:v1")
    assert again == {"path": str(folder / "model.gguf"), "cached": True, "source_uri": f"{URI}/model.gguf"}
    assert puller.pull(URI, "lib/whole:v1", backend_type="llamacpp")["path"] == str(folder / "model.gguf")
    assert registry.front.faults.seen == []
    assert puller.failure(f"{URI}/other.gguf", "lib/whole:v1").code == "not_found"


def test_a_reference_may_name_registry_and_digest(registry: Registry, make: MakePuller) -> None:
    digest = registry.push("lib/named", [("a.bin", b"a")])
    puller = make(pull_retries=0)
    puller.pull("repo://a:1", f"{registry.host}/lib/named@{digest}")
    assert puller.failure("repo://a:2", f"lib/named@sha256:{'0' * 64}").code == "not_found"


def test_what_an_artifact_lacks_is_found_before_the_download(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/lacks", [("model.bin", b"m")])
    puller = make(harbor_url=registry.front.url)
    assert puller.failure(f"{URI}/other.bin", "lib/lacks:v1").code == "not_found"
    assert puller.failure(URI, "lib/lacks:v1", backend_type="llamacpp").code == "not_found"
    assert registry.front.faults.requests("/blobs/") == []
    assert list(puller.folder.iterdir()) == []


def test_logins_that_do_not_work_are_told_apart(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/login", [("a.bin", b"a")])
    wrong = make(harbor_password="wrong-password").failure(URI, "lib/login:v1")
    assert (wrong.code, wrong.status) == ("auth_failed", 401)
    assert "wrong-password" not in str(wrong)
    none = make(harbor_password="").failure(URI, "lib/login:v1")
    assert (none.code, none.status) == ("credentials_missing", 500)
    assert make(harbor_url="").failure(URI, f"{registry.host}/lib/login:v1").code == "credentials_missing"
    assert make(harbor_url="").failure(URI, "lib/login:v1").code == "credentials_missing"
    assert make().failure(URI, "lib/nothing:v1").code == "not_found"


def test_the_login_goes_to_its_own_registry_only(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/own", [("a.bin", b"a")])
    puller = make(harbor_url="https://elsewhere.example")
    assert puller.failure(URI, f"{registry.host}/lib/own:v1").code == "credentials_missing"
    assert all("authorization" not in seen.headers for seen in registry.front.faults.seen)


def test_a_registry_that_asks_for_the_password_gets_it(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/basic", [("a.bin", b"aaa")])
    registry.front.basic = True
    puller = make(harbor_url=registry.front.url)
    puller.pull(URI, "lib/basic:v1")
    assert (puller.folder / "repo--model--v1" / "a.bin").read_bytes() == b"aaa"
    assert make(harbor_password="wrong").failure("repo://b:1", "lib/basic:v1").code == "auth_failed"


def test_a_certificate_of_an_unknown_authority_is_refused(registry: Registry, make: MakePuller) -> None:
    error = make(ssl_cert_file="").failure(URI, "lib/whole:v1")
    assert (error.code, error.status) == ("source_unreachable", 502)
    assert "SSL_CERT_FILE" in str(error)
    assert registry.front.faults.seen == []


def test_plain_http_is_for_loopback_only(make: MakePuller) -> None:
    error = make(harbor_url="http://registry.example").failure(URI, "lib/a:v1")
    assert "plain HTTP" in str(error)


@pytest.mark.parametrize(
    "titles",
    [
        ["../evil"],
        ["/etc/evil"],
        ["C:evil"],
        ["a/./b"],
        ["good", "sub/../../evil"],
        ["same", "same"],
        ["a", "a/b"],
        [".."],
    ],
    ids=str,
)
def test_titles_that_leave_the_folder_or_clash_are_refused(
    registry: Registry, behind_front: Puller, titles: list[str]
) -> None:
    registry.push("lib/titles", [(title, title.encode()) for title in titles])
    error = behind_front.failure(URI, "lib/titles:v1")
    assert (error.code, error.status) == ("model_pull_failed", 502)
    assert registry.front.faults.requests("/blobs/") == []
    assert list(behind_front.folder.iterdir()) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"stall_at": MIB},
        {"truncate_at": MIB},
        {"status": 500},
        {"status": 429, "headers": {"Retry-After": "1"}},
    ],
    ids=str,
)
def test_a_fault_that_passes_is_overcome(
    registry: Registry, behind_front: Puller, fault: dict[str, Any]
) -> None:
    data = bytes_of(noise(2 * MIB))
    registry.push("lib/passes", [("m.bin", data)])
    registry.fault("/blobs/", **fault)
    behind_front.pull(URI, "lib/passes:v1")
    assert (behind_front.folder / "repo--model--v1" / "m.bin").read_bytes() == data
    first, second = registry.front.faults.requests("/blobs/")
    assert first.headers.get("range") is None
    if "status" not in fault:
        assert second.headers["range"] == f"bytes={MIB}-{2 * MIB - 1}"
        assert first.sent + second.sent == 2 * MIB


@pytest.mark.parametrize(
    ("where", "fault", "code", "status"),
    [
        ("/manifests/", {"status": 500}, "source_unreachable", 502),
        ("/manifests/", {"status": 403}, "auth_failed", 401),
        ("/manifests/", {"flip_at": 30}, "model_pull_failed", 502),
        ("/blobs/", {"status": 404}, "not_found", 404),
        ("/blobs/", {"flip_at": 1000}, "model_pull_failed", 502),
        ("/blobs/", {"stall_at": 0}, "source_unreachable", 502),
        ("/blobs/", {"truncate_at": 0}, "source_unreachable", 502),
    ],
    ids=str,
)
def test_a_fault_that_stays_fails_and_leaves_the_disk_as_it_was(
    registry: Registry, behind_front: Puller, where: str, fault: dict[str, Any], code: str, status: int
) -> None:
    registry.push("lib/stays", [("m.bin", bytes_of(noise(MIB)))])
    registry.fault(where, times=99, **fault)
    error = behind_front.failure(URI, "lib/stays:v1")
    assert (error.code, error.status) == (code, status)
    assert list(behind_front.folder.iterdir()) == []
    assert [event.phase for event in behind_front.events].count("failed") == 1
    registry.front.faults.clear()
    assert behind_front.pull(URI, "lib/stays:v1")["cached"] is False


def test_a_token_server_that_is_down_is_no_wrong_password(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/tokens", [("a.bin", b"a")])
    registry.fault("/token", status=503)
    make().pull(URI, "lib/tokens:v1")
    registry.fault("/token", times=9, status=503)
    assert make(pull_retries=1).failure("repo://b:1", "lib/tokens:v1").code == "source_unreachable"


def test_a_token_that_ran_out_is_replaced(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/late", [("a.bin", b"a")])
    challenge = (
        f'Bearer realm="{registry.front.url}/token",service="test-registry",scope="repository:lib/late:pull"'
    )
    registry.fault("/blobs/", times=2, status=401, headers={"Www-Authenticate": challenge})
    make(harbor_url=registry.front.url).pull(URI, "lib/late:v1")
    assert len(registry.front.faults.requests("/token")) == 2


def test_a_manifest_that_is_none_says_so(registry: Registry, behind_front: Puller) -> None:
    registry.push("lib/none", [])
    assert behind_front.failure(URI, "lib/none:v1").code == "not_found"


def test_labels_are_stored_as_they_came(registry: Registry, make: MakePuller) -> None:
    registry.push("lib/labels", [("a.bin", b"a")])
    puller = make()
    labels = {
        "digest": "sha256:x",
        "checksum": "y",
        "category": "c",
        "name": "N",
        "version": "1",
        "metadata": None,
    }
    puller.pull(URI, "lib/labels:v1", labels=labels)
    [model] = puller.store.list()
    assert model["digest"] == "sha256:x"
    assert (model["checksum"], model["category"], model["model_name"], model["version"]) == (
        "y",
        "c",
        "N",
        "1",
    )
    assert model["metadata"] == {}
