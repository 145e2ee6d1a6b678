"""The agent in the tests' own process: built, and started only as far as a test does so."""

from pathlib import Path
from typing import Any

from flask.testing import FlaskClient

from solarhost.app import create_app
from solarhost.host import Host
from solarhost.settings import Settings

KEY = "test-key"


def settings_in(folder: Path, **settings: Any) -> Settings:
    """All that such an agent keeps is in `folder`."""
    places = {
        "config_file": folder / "config.json",
        "log_dir": folder / "logs",
        "models_dir": folder / "models",
        "jobs_dir": folder / "jobs",
    }
    return Settings(**{"api_key": KEY, **places, **settings})


def client_of(host: Host) -> FlaskClient:
    """Sends the agent's key along."""
    client = create_app(host).test_client()
    client.environ_base["HTTP_X_API_KEY"] = host.settings.api_key
    return client
