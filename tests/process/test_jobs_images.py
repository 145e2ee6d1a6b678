"""Images that have to be pulled first, from a real registry."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
import requests

from contrib.setup.system import find_program
from solarhost.jobs.records import Status
from tests.agent import free_port, wait_until
from tests.docker_engine import IMAGE, DockerEngine
from tests.jobs_fixtures import Jobs, definition

USER, PASSWORD = "robot$jobs", "let me in"
HTPASSWD = f"{USER}:$2b$04$/CL7vjbwS8BSmApAZrQliOML7ZBzhToEAlVLz8SzoFeij5mfhurEm\n"  # bcrypt


@contextmanager
def serving(folder: Path, access: str = "") -> Iterator[str]:
    """Address of a registry on loopback, which Docker takes without TLS."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "registry.yml"
    config.write_text(
        f"""
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}
http: {{addr: {address}}}
{access}
"""
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [find_program("docker-registry"), "serve", str(config)], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: answers(f"http://{address}/v2/"), 30, "the registry")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).status_code in (200, 401)
    except requests.ConnectionError:
        return False


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path) as address:
        yield address


@pytest.fixture
def private_image(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[str]:
    """An image in a registry that wants a password; the engine does not have it."""
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with serving(tmp_path, f"auth: {{htpasswd: {{realm: tests, path: {tmp_path}/htpasswd}}}}") as address:
        client, image = docker_engine.client, f"{address}/team/private"
        client.tag(IMAGE, image, "v1")
        pushed = client.push(image, tag="v1", auth_config={"username": USER, "password": PASSWORD})
        assert "errorDetail" not in str(pushed)
        client.remove_image(f"{image}:v1")
        yield f"{image}:v1"


def test_a_missing_image_is_pulled_and_the_log_tells(jobs: Jobs, docker_engine: DockerEngine, registry: str):
    client = docker_engine.client
    image = f"{registry}/team/tools"
    client.tag(IMAGE, image, "v1")
    assert "errorDetail" not in str(client.push(image, tag="v1"))
    client.remove_image(f"{image}:v1")
    try:
        one = {"name": "one", "image": f"{image}:v1", "command": "echo here"}
        job = jobs.run("pulls", one, {**one, "name": "two"})
        assert job.status is Status.COMPLETED, job.error_message
        first = jobs.log("pulls", "one").splitlines()
        assert first[0] == f"pulling image {image}:v1"
        assert first[-1] == "here"
        assert len(first) >= 3  # and how it went
        assert jobs.log("pulls", "two") == "here\n"
        entries = jobs.heard.entries("pulls", "one")
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    finally:
        client.remove_image(f"{image}:v1")


def test_an_image_that_the_registry_does_not_have(jobs: Jobs, registry: str):
    job = jobs.run("lacks", {"name": "one", "image": f"{registry}/no/such:1", "command": "true"})
    assert job.status is Status.FAILED
    assert "not found" in (job.steps[0].error_message or "")


def test_a_private_image_is_pulled_with_the_credentials_of_its_registry(
    make_jobs, docker_engine: DockerEngine, private_image: str
):
    address = private_image.partition("/")[0]
    jobs = make_jobs(harbor_url=f"http://{address}/", harbor_username=USER, harbor_password=PASSWORD)
    job = jobs.run("private", {"name": "one", "image": private_image, "command": "echo here"})
    docker_engine.client.remove_image(private_image)
    assert job.status is Status.COMPLETED, job.error_message
    assert jobs.log("private", "one").splitlines()[-1] == "here"
    assert PASSWORD not in jobs.log("private", "one")
    assert PASSWORD not in (jobs.folder / ".records/private.json").read_text()


@pytest.mark.parametrize(
    "settings",
    [
        {"harbor_url": "", "harbor_username": USER, "harbor_password": PASSWORD},
        {"harbor_url": "http://{address}", "harbor_username": USER, "harbor_password": "a wrong one"},
        {"harbor_url": "http://127.0.0.1:9", "harbor_username": USER, "harbor_password": PASSWORD},
    ],
    ids=["no registry is set", "wrong password", "the password is another registry's"],
)
def test_a_private_image_that_may_not_be_pulled_fails_its_step(make_jobs, private_image: str, settings):
    address = private_image.partition("/")[0]
    jobs = make_jobs(**{**settings, "harbor_url": settings["harbor_url"].format(address=address)})
    job = jobs.run("refused", {"name": "one", "image": private_image, "command": "true"})
    error = job.steps[0].error_message or ""
    assert error.startswith(f"Docker could not pull image {private_image}: ")
    assert "auth" in error
    assert PASSWORD not in error + jobs.log("refused", "one")


def test_a_cancel_ends_a_download_that_hangs(jobs: Jobs, docker_engine: DockerEngine):
    with free_listener() as listener:
        image = f"127.0.0.1:{listener.getsockname()[1]}/slow:1"  # takes connections, never answers
        jobs.service.submit(definition("hangs", {"name": "one", "image": image, "command": "true"}))
        wait_until(lambda: jobs.heard.entries("hangs"), 30, "the download to begin")
        jobs.service.cancel("hangs")
    assert not (jobs.folder / "hangs").exists()
    with pytest.raises(docker.errors.ImageNotFound):
        docker_engine.client.inspect_image(image)


def free_listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    return listener
