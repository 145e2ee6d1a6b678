"""The OpenAPI document against the service itself: generated requests, good and bad."""

import time
from collections.abc import Iterator

import pytest
import schemathesis
from flask import Flask
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from solarhost.app import create_app
from solarhost.host import Host
from tests.in_process import KEY, settings_in

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
)
# Answers of these that say "could not be carried out", which is not the service's own failure.
EXPECTED = {
    ("POST", "/instances/{instance_id}/start"): {500},
    ("POST", "/instances/{instance_id}/restart"): {500},
    ("POST", "/models/pull"): {500, 502, 507},
    ("POST", "/reconnect"): {503},
    ("POST", "/jobs"): {503, 507},
}


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    folder = tmp_path_factory.mktemp("openapi")
    host = Host(
        settings_in(
            folder,
            llama_server_path="/nowhere/llama-server",
            hf_endpoint="http://127.0.0.1:9",
            harbor_url="http://127.0.0.1:9",
            docker_host=f"unix://{folder}/docker.sock",
            max_retries=0,
            min_free_disk_gb=0,
        )
    )
    host.settings.jobs_dir.mkdir()  # as a start does
    host.resources.start()
    host.models.start()
    yield create_app(host)
    deadline = time.monotonic() + 10
    host.models.close(deadline)
    host.resources.close(deadline)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
def test_every_answer_is_as_documented(application: Flask, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_wsgi("/openapi.json", application)
    seen = set()
    for result in document.get_all_operations():
        operation = result.ok()
        try:
            cases = operation.as_strategy(generation_mode=mode)
            _check_all(cases)
        except Unsatisfiable:  # an operation without parameters can't be called wrongly
            assert mode is GenerationMode.NEGATIVE
        seen.add(operation.label)
    assert len(seen) > 20


def _check_all(cases: SearchStrategy[schemathesis.Case]) -> None:
    @settings(max_examples=settings().max_examples // 2)  # there are many operations
    @given(cases)
    def check(case: schemathesis.Case) -> None:
        response = case.call(headers={"X-API-Key": KEY})
        expected = EXPECTED.get((case.method, case.path), set())
        checks = [c for c in CHECKS if not (c is not_a_server_error and response.status_code in expected)]
        case.validate_response(response, checks=checks, headers={"X-API-Key": KEY})

    check()
