"""`solar-host serve`: the agent itself."""

import click

from solarhost.server import serve as server
from solarhost.server.build import build


@click.command(name="serve")
def serve() -> None:
    """Start the agent and serve its API until a signal ends it."""
    server.serve(server.settings_or_exit(), build)
