"""Answers that lie ready are the same as the application's, and nothing else is answered in its place."""

import pytest
from werkzeug.test import Client

from solarhost.app import create_app
from solarhost.host import Host
from tests.in_process import settings_in

KEY = {"X-API-Key": "right"}


@pytest.fixture
def app(tmp_path):
    return create_app(Host(settings_in(tmp_path, api_key="right")))


@pytest.fixture
def client(app):
    return Client(app)


@pytest.mark.parametrize("path", ["/resources", "/instances"])
def test_the_answer_is_that_of_the_application(app, client, path):
    ready = client.get(path, headers=KEY)
    made = client.get(path, headers={"Authorization": "Bearer right"})  # such a request goes the long way
    assert (ready.status, ready.data) == (made.status, made.data) == ("200 OK", ready.data)
    assert sorted(ready.headers) == sorted(made.headers)
    assert ready.json is not None


@pytest.mark.parametrize(
    "headers", [{}, {"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": "r\xefght"}]
)
def test_without_the_right_key_there_is_no_answer(client, headers):
    refused = client.get("/resources", headers=headers)
    assert (refused.status_code, refused.json) == (401, {"detail": "Invalid or missing API key"})


def test_other_methods_and_paths_are_the_application_s(client):
    assert client.head("/resources", headers=KEY).data == b""
    assert client.delete("/resources", headers=KEY).status_code == 405
    assert client.get("/resources/", headers=KEY).status_code == 404
    assert client.options("/resources").status_code in (200, 204)
