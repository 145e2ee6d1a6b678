"""gunicorn's configuration file: `gunicorn -c python:solarhost.server.gunicorn_conf`."""

from solarhost.server.agent import Agent
from solarhost.server.build import build
from solarhost.server.options import gunicorn_options
from solarhost.server.serve import settings_or_exit

_settings = settings_or_exit()
_agent = Agent(_settings, build)

application = _agent.application
wsgi_app = f"{__name__}:application()"
globals().update(gunicorn_options(_settings, _agent))
