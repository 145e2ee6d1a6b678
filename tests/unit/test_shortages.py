"""A shortage is told with its values, wherever it comes up."""

import errno
import os
import resource
from pathlib import Path

import pytest
from flask import Flask

from solarhost.api.errors import register
from solarhost.modelstore.failures import could_not_write
from solarhost.shortages import refused, why
from solarhost.threads import NoThread
from tests.descriptors import left


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "measured"),
    [
        (errno.EMFILE, str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
        (errno.ENFILE, Path("/proc/sys/fs/file-max").read_text().strip()),
        (errno.ENOMEM, "GiB of RAM are free"),
        (errno.EAGAIN, "ulimit -u"),
    ],
)
def test_a_shortage_is_told_with_its_values(number: int, measured: str) -> None:
    told = why(_error(number))
    assert told.startswith(os.strerror(number))
    assert measured in told
    assert told in str(refused(_error(number)))
    assert told in str(could_not_write(_error(number)))


def test_other_errors_are_told_in_the_systems_words() -> None:
    assert why(_error(errno.ENOENT)) == "No such file or directory"
    assert refused(_error(errno.ENOENT)) is None
    assert refused(ValueError("no")) is None


def test_a_missing_thread_is_told_with_its_values() -> None:
    assert "ulimit -u" in str(NoThread("x"))


def test_a_call_that_meets_a_shortage_is_unavailable(tmp_path: Path) -> None:
    app = Flask(__name__)
    register(app)
    app.add_url_rule("/", view_func=lambda: str(list(tmp_path.iterdir())))
    client = app.test_client()
    assert client.get("/").status_code == 200
    with left(0):
        answer = client.get("/")
    assert answer.status_code == 503
    assert "Too many open files (this process may have" in answer.get_json()["detail"]
