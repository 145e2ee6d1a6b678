"""The agent that may run here already."""

from typing import Any

import requests

from solarhost.commands.remote import local_url
from solarhost.settings import Settings

ANSWER_S = 5.0


def health_of_agent(settings: Settings) -> dict[str, Any] | None:
    """What its `/health` says; None when no agent answers at the port of the settings."""
    try:
        health = _get(settings, "/health").json()
    except (requests.RequestException, ValueError):
        return None
    return health if isinstance(health, dict) and health.get("service") == "solar-host" else None


def takes_key(settings: Settings) -> bool:
    """Whether the agent there accepts the key of the settings. Raises RequestException."""
    answer = _get(settings, "/instances", {"X-API-Key": settings.api_key})
    return answer.status_code != 401


def _get(settings: Settings, path: str, headers: dict[str, str] | None = None) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(
            local_url(settings) + path, headers=headers, timeout=ANSWER_S, allow_redirects=False
        )
