"""The real application: what gunicorn serves when no test says otherwise."""

from flask import Flask

from solarhost.app import create_app
from solarhost.host import Host
from solarhost.settings import Settings


def build(settings: Settings) -> Flask:
    """The application over a fresh host, nothing of it started yet."""
    return create_app(Host(settings))
