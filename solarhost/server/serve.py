"""The two ways to the same server: `serve()`, and a gunicorn configuration file (`gunicorn_conf`)."""

import sys
from collections.abc import Callable
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from solarhost.doubts import doubts
from solarhost.errors import SettingsError
from solarhost.server.agent import EXIT_SETTINGS, Agent
from solarhost.server.options import gunicorn_options
from solarhost.settings import Settings, load


def settings_or_exit() -> Settings:
    """The settings; a wrong one ends the program with a line that names it, a doubtful one gets a line."""
    try:
        settings = load()
    except SettingsError as error:
        sys.stderr.write(f"solar-host: {error}\n")
        sys.exit(EXIT_SETTINGS)
    for sentence in doubts(settings):
        sys.stderr.write(f"solar-host: warning: {sentence}\n")
    return settings


def serve(settings: Settings, build: Callable[[Settings], Flask]) -> None:
    """Run the agent in this process and its worker until a signal ends it; exits the process."""
    Gunicorn(settings, Agent(settings, build)).run()


class Gunicorn(BaseApplication):  # type: ignore[misc]
    """gunicorn without its command line."""

    def __init__(self, settings: Settings, agent: Agent):
        self._settings = settings
        self._agent = agent
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_options(self._settings, self._agent).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._agent.application()
