"""The `solar-host` command."""

import click

from solarhost import __version__
from solarhost.server.build import build
from solarhost.server.serve import serve, settings_or_exit


class DefaultsToServe(click.Group):
    """`solar-host` alone is `solar-host serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["serve"])


@click.group(cls=DefaultsToServe, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="solar-host")
def main() -> None:
    """Run, watch and account for model servers on this machine.

    Without a command the agent is started. Settings come from the environment and from .env in the
    current folder.
    """


@main.command(name="serve")
def serve_command() -> None:
    """Start the agent and serve its API until a signal ends it."""
    serve(settings_or_exit(), build)
